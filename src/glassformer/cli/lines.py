"""Lines of stdin to lines of stdout, one for each. Both are UTF-8 in every locale, and only a line feed ends a line."""

import sys
from collections.abc import Callable, Iterable, Iterator

from glassformer.data.records import OnBad
from glassformer.data.text_files import BYTE_ORDER_MARK, Line, decode_line

CHUNK = 1000
"""Lines answered at a time, so that a long input gives output as it goes and memory stays flat."""
Answer = Callable[[list[str]], list[str]]


def check_stdin() -> None:
    """Refuse a stdin that is closed, before a model is loaded."""
    if sys.stdin is None:
        raise ValueError("stdin is closed: expected lines of text, from a terminal, a file or a pipe")


def run_lines(answer: Answer, *, size: int = CHUNK, on_bad: OnBad = "skip") -> None:
    """Print the answer to each line of stdin; a line break in it becomes the two characters \\n.

    A line that is not UTF-8, or that `answer` refuses by a ValueError, is bad. With `on_bad="skip"` it is reported on
    stderr, its answer is an empty line, and a ValueError at the end tells how many there were. With "error" the
    answers before it are printed and the ValueError names it.
    """
    n_lines = n_bad = 0
    for chunk in _chunks(_read_stdin(), size):
        n_lines += len(chunk)
        for line, found in zip(chunk, _answer_lines(answer, chunk), strict=True):
            if isinstance(found, str):
                sys.stdout.write(found.replace("\n", "\\n") + "\n")
                continue
            if on_bad == "error":
                raise ValueError(f"{line.where}: {found} (--on-bad skip continues with the next line)")
            n_bad += 1
            print(f"glassformer: {line.where}: {found}", file=sys.stderr)
            sys.stdout.write("\n")
        sys.stdout.flush()
    if n_bad:
        raise ValueError(f"{n_bad:,} of {n_lines:,} lines are bad: an empty line stands for each in the output")


def _answer_lines(answer: Answer, lines: list[Line]) -> list[str | Exception]:
    """The answer to each line, or what is wrong with it."""
    found: list[str | Exception] = [ValueError(line.problem) for line in lines]
    good = [place for place, line in enumerate(lines) if not line.problem]
    for place, one in zip(good, _answer_texts(answer, [lines[place].text for place in good]), strict=True):
        found[place] = one
    return found


def _answer_texts(answer: Answer, texts: list[str]) -> list[str | Exception]:
    """The answers to all texts at once. If one is refused, each half is asked by itself, down to the bad text."""
    if not texts:
        return []
    try:
        return [*answer(texts)]
    except ValueError as error:
        if len(texts) == 1:
            return [error]
    half = len(texts) // 2
    return _answer_texts(answer, texts[:half]) + _answer_texts(answer, texts[half:])


def _read_stdin() -> Iterator[Line]:
    # A stream without bytes below it is text already, as in a notebook.
    raw: Iterable[bytes] = getattr(sys.stdin, "buffer", None) or (
        text.encode("utf-8", "surrogatepass") for text in sys.stdin
    )
    for number, line in enumerate(raw, start=1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        yield decode_line(line.removesuffix(b"\n").removesuffix(b"\r"), f"stdin:{number}")


def _chunks(lines: Iterator[Line], size: int) -> Iterator[list[Line]]:
    """So many lines at a time; on a terminal each line by itself."""
    chunk: list[Line] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size or sys.stdin.isatty():
            yield chunk
            chunk = []
    if chunk:
        yield chunk
