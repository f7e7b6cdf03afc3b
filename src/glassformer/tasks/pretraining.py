"""What the tasks share that learn from texts alone: the texts, and lines with blanks to fill in."""

from collections.abc import Iterable, Sequence

from glassformer.data.batching.text_rows import TextRows, write_text_rows
from glassformer.data.batching.token_files import EncodeBatch
from glassformer.data.readers.plain_texts import PlainText
from glassformer.tasks.configs.pretraining import TextData as TextData
from glassformer.text.encoded import Encoded
from glassformer.training.run_folder import RunFolder

MAX_VALID = 2000
"""Texts that each validation looks at."""
BLANK = "___"
"""What is to be filled in, where a line is typed."""
STAND_IN = "x"
"""What a blank is while a line is cut into tokens: a word by itself, whatever stands beside it."""


def texts_of(examples: Iterable[PlainText]) -> Iterable[str]:
    """Their texts, as they are asked for."""
    return (example.text for example in examples)


def token_rows(run: RunFolder, examples: Iterable[PlainText], encode: EncodeBatch, longest: int) -> TextRows:
    """The texts as rows of tokens on disk; those of an earlier start of the run, where there are."""
    folder = run.tokens / "rows"
    if run.has_tokens(folder.name):
        return TextRows(folder)
    return write_text_rows(folder, texts_of(examples), encode, longest=longest)


def without_blanks(line: str) -> tuple[str, list[tuple[int, int]]]:
    """The line with a word in each of its blanks, and where these stand, each with the spaces before it."""
    parts = line.split(BLANK)
    places, length = [], 0
    for part in parts[:-1]:
        end = length + len(part) + len(STAND_IN)
        places.append((length + len(part.rstrip()), end))
        length = end
    return STAND_IN.join(parts), places


def put_marks(encoded: Encoded, places: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """The tokens of such a line, with the mark of each blank in place of the word that stood for it."""
    found: list[int] = []
    last = None
    for token, (begin, end), source in zip(encoded.ids, encoded.spans, encoded.sources, strict=True):
        # A space that a tokenizer puts before every text has no characters of its own.
        is_first = begin == end == 0
        hits = (n for n, (a, b) in enumerate(places) if begin < b and (end > a or (is_first and a == 0)))
        hit = next(hits, None) if source is not None else None
        if hit is None:
            found.append(token)
        elif hit != last:
            found.append(marks[hit])
        last = hit
    return found


def fill_in(line: str, words: Iterable[str]) -> str:
    """The line with these in its blanks; a blank that nothing is left for stays."""
    parts, waiting = line.split(BLANK), iter(words)
    return "".join(part + next(waiting, BLANK) for part in parts[:-1]) + parts[-1]
