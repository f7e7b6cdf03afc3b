"""Read lines from stdin or a file, and write one line of answer for each to stdout or a file.

Text is UTF-8 in every locale, and only a line feed ends a line.
"""

import json
import os
import secrets
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from glassformer.base.names import path_suggestion
from glassformer.data.readers.records import OnBad
from glassformer.data.readers.text_files import (
    BYTE_ORDER_MARK,
    Line,
    Span,
    check_first_line,
    decode_line,
    read_raw_lines,
)

CHUNK = 1000
"""Number of lines that are answered at a time, so that output appears early and memory use does not grow."""
FILE_CHUNK = 4000
"""The same for answers that go to a file: more lines of similar length are found among more lines."""
READ_BYTES = 1 << 16
"""The most bytes that are read from a pipe at a time."""
PAUSE_SECONDS = 0.01
"""How long a pipe must be empty before the lines that came so far are answered. A program that writes as fast as it can
pauses for less, so that its lines are answered in full chunks."""
Answer = Callable[[list[str]], list[str]]
Advance = Callable[[int], None]
"""A function that advances the progress bar by a number of bytes of input."""


class _ReadLine(NamedTuple):
    line: Line
    n_bytes: int
    """Length of the line in the input, in bytes, with its line break."""


def check_stdin() -> None:
    """Raise ValueError if stdin is closed, so that the error comes before a model is loaded."""
    if sys.stdin is None:
        raise ValueError("stdin is closed: expected lines of text, from a terminal, a file or a pipe")


def check_files(input: Path | None, output: Path | None) -> None:
    """Raise OSError if `input` is missing or a folder, if `output` exists, or if its parent folder does not.

    Call this before a model is loaded, so that the error comes at once.
    """
    if input is not None:
        if not input.exists():
            raise FileNotFoundError(f"--input {input}: no such file: {path_suggestion(input)}")
        if input.is_dir():
            raise IsADirectoryError(f"--input {input} is a folder: expected a file with one text per line")
    if output is not None:
        _check_new(output)
        if not output.absolute().parent.is_dir():
            raise FileNotFoundError(f"--output {output}: the folder {output.absolute().parent} does not exist")


def run_lines(
    answer: Answer,
    *,
    size: int = CHUNK,
    on_bad: OnBad = "skip",
    input: Path | None = None,
    output: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
    span: Span | None = None,
) -> None:
    """Write the answer to each line of `input` (default: stdin) to `output` (default: stdout).

    `answer` gets `size` lines of a file at a time. Of a pipe it gets the lines that have arrived, at most `size`, so
    that a program that waits for each answer gets it. A line break in an answer becomes the two characters \\n.

    A line is bad if it is not UTF-8, or if `answer` raises a ValueError about it. With `on_bad="skip"` a bad line is
    reported on stderr, its answer is an empty line (with `as_json` an object with the error), and a ValueError at the
    end says how many lines were bad. With `on_bad="error"` the first bad line raises a ValueError. The answers before
    it are on stdout, but an `output` file is written whole or not at all.

    With `span` only that part of the `input` file is answered.

    While an `input` file is read, stderr shows a progress bar if it is a terminal and the answers go elsewhere.
    """
    n_lines = n_bad = 0
    stand_in = "an object with the error" if as_json else "an empty line"
    with ExitStack() as stack:
        file = None if output is None else stack.enter_context(_new_file(output))
        advance = stack.enter_context(_progress(input, is_alone=output is not None, quiet=quiet))
        # On a terminal, answer each line as soon as it is typed.
        size = 1 if input is None and sys.stdin.isatty() else size
        for chunk in _stdin_chunks(size) if input is None else _file_chunks(input, size, span):
            n_lines += len(chunk)
            lines = [one.line for one in chunk]
            answers = _answer_lines(answer, lines)
            stream = file or sys.stdout
            for line, found in zip(lines, answers, strict=True):
                if isinstance(found, str):
                    stream.write(found.replace("\n", "\\n") + "\n")
                    continue
                if on_bad == "error":
                    unwritten = "" if output is None else f"; {output} was not written"
                    raise ValueError(f"{line.where}: {found} (--on-bad skip continues with the next line){unwritten}")
                n_bad += 1
                print(f"glassformer: {line.where}: {found}", file=sys.stderr)
                stream.write(json.dumps({"error": str(found)}, ensure_ascii=False) + "\n" if as_json else "\n")
            stream.flush()
            advance(sum(one.n_bytes for one in chunk))
    if n_bad:
        raise ValueError(f"{n_bad:,} of {n_lines:,} lines are bad: {stand_in} stands for each in the output")


def _answer_lines(answer: Answer, lines: list[Line]) -> list[str | Exception]:
    """Return the answer to each line, or an exception for a line that is not UTF-8 or that `answer` refuses."""
    found: list[str | Exception] = [ValueError(line.problem) for line in lines]
    good = [place for place, line in enumerate(lines) if not line.problem]
    for place, one in zip(good, _answer_texts(answer, [lines[place].text for place in good]), strict=True):
        found[place] = one
    return found


def _answer_texts(answer: Answer, texts: list[str]) -> list[str | Exception]:
    """Return the answer to each text, or the ValueError that `answer` raises about it.

    All texts are answered at once. If that raises, each half is answered separately, until the bad texts are alone.
    """
    if not texts:
        return []
    try:
        return [*answer(texts)]
    except ValueError as error:
        if len(texts) == 1:
            return [error]
    half = len(texts) // 2
    return _answer_texts(answer, texts[:half]) + _answer_texts(answer, texts[half:])


Chunk = list[_ReadLine]


def _stdin_chunks(size: int) -> Iterator[Chunk]:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:  # in a notebook, stdin has no buffer of bytes
        raw = (text.encode("utf-8", "surrogatepass") for text in sys.stdin)
        return _as_chunks(_in_lists(raw, size), "stdin")
    return _as_chunks(read_available(stream, size), "stdin")


def _file_chunks(path: Path, size: int, span: Span | None = None) -> Iterator[Chunk]:
    if path.is_fifo():  # a named pipe, or <(COMMAND) of a shell
        with path.open("rb") as stream:
            yield from _as_chunks(read_available(stream, size), str(path))
    else:
        before = 0 if span is None else span.line - 1
        lines = _in_lists(read_raw_lines(path, span), size)
        yield from _as_chunks(lines, str(path), may_have_mark=False, before=before)


def read_available(stream: Any, size: int) -> Iterator[list[bytes]]:
    """Yield the lines of a binary stream in lists, each with the lines that can be read without waiting for more.

    A list has at least one line and at most `size`. Lines end with a line feed, which the last one may lack.
    """
    lines: deque[bytes] = deque()
    start: list[bytes] = []  # the parts of a line whose end has not been read
    is_open = True
    while is_open or lines:
        while is_open and len(lines) < size and _has_data(stream, PAUSE_SECONDS if lines else None):
            data = stream.read1(READ_BYTES)
            first, *others = data.split(b"\n")
            start.append(first)
            for part in others:
                lines.append(b"".join(start) + b"\n")
                start = [part]
            if not data:
                is_open = False
                lines.extend(filter(None, [b"".join(start)]))
        if lines:
            yield [lines.popleft() for _ in range(min(size, len(lines)))]


def _has_data(stream: Any, seconds: float | None) -> bool:
    """Wait until the stream has data or has ended, at most `seconds`, and return whether that is so.

    Always true for a stream that the system cannot wait for: one without a descriptor, or a pipe on Windows.
    """
    try:
        return bool(select.select([stream], [], [], seconds)[0])
    except (OSError, TypeError, ValueError):
        return True


def _in_lists(lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while several := list(islice(lines, size)):
        yield several


def _as_chunks(
    raw: Iterable[list[bytes]], name: str, *, may_have_mark: bool = True, before: int = 0
) -> Iterator[Chunk]:
    """Decode lists of lines. `name` is the name of the input in the locations of lines.

    `may_have_mark` says that a byte-order mark before the first line has not been dropped yet. `before` is the number
    of lines of the input that are not read.
    """
    number = before
    for several in raw:
        chunk = []
        for line in several:
            number += 1
            if number == 1 and may_have_mark:
                check_first_line(line, f"{name}:1")
                line = line.removeprefix(BYTE_ORDER_MARK)
            chunk.append(_as_line(line, f"{name}:{number}"))
        yield chunk


def _as_line(raw: bytes, where: str) -> _ReadLine:
    return _ReadLine(decode_line(raw.removesuffix(b"\n").removesuffix(b"\r"), where), len(raw))


def _check_new(output: Path) -> None:
    if os.path.lexists(output):
        raise FileExistsError(f"--output {output} exists: choose another name, or remove it first")


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Context manager that opens a new file for writing, under a hidden temporary name.

    The file gets the name `path` when the block ends without an error; otherwise it is removed.
    """
    work = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            with work.open("x", encoding="utf-8", newline="\n") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            if error.filename is None and not isinstance(
                error, BrokenPipeError
            ):  # an error of stdin, stdout or this file
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        _put_in_place(work, path)
    finally:
        work.unlink(missing_ok=True)


def _put_in_place(work: Path, path: Path) -> None:
    """Give the finished temporary file `work` the name `path`. Raise FileExistsError if that exists by now."""
    try:
        os.link(work, path)  # fails if the name exists, where a rename would replace the file
    except FileExistsError:
        _check_new(path)
        raise
    except OSError:  # the file system has no hard links
        _check_new(path)
        work.rename(path)


@contextmanager
def _progress(input: Path | None, *, is_alone: bool, quiet: bool) -> Iterator[Advance]:
    """Context manager that shows a progress bar on stderr: how many bytes of the `input` file have been answered.

    It yields a function to call with each further number of bytes. No bar is shown for stdin, with `quiet`, if stderr
    is no terminal, or if the terminal shows the answers too. `is_alone` says that the answers go to a file.
    """
    if input is None or quiet or not sys.stderr.isatty() or not (is_alone or not sys.stdout.isatty()):
        yield lambda n_bytes: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    total: int | None = None
    with suppress(OSError):
        total = input.stat().st_size if input.is_file() and input.suffix != ".gz" else None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(input.name, total=total)
        yield lambda n_bytes: bar.advance(task, n_bytes)
