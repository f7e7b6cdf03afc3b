"""Lines with blanks to fill in, and how their tokens are replaced by mask tokens. Imports no torch."""

from collections.abc import Iterable, Sequence

from glassformer.data.readers.plain_texts import PlainText
from glassformer.text.encoded import Encoded

BLANK = "___"
"""A blank in a line that a user types."""


GAP_TOKENS = ("<before>", "<after>", "<middle>")
"""Special tokens of a code model: before the text in front of a gap, before the text after it, and before the gap's
own text. Plain text never encodes to them."""
STAND_IN = "x"
"""Replaces a blank while a line is tokenized, so that it becomes a separate word."""


def texts_of(examples: Iterable[PlainText]) -> Iterable[str]:
    """Return the texts of the examples, lazily."""
    return (example.text for example in examples)


def without_blanks(line: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the line with STAND_IN in each blank, and the character span of each, with the spaces before it."""
    parts = line.split(BLANK)
    places, length = [], 0
    for part in parts[:-1]:
        end = length + len(part) + len(STAND_IN)
        places.append((length + len(part.rstrip()), end))
        length = end
    return STAND_IN.join(parts), places


def put_marks(encoded: Encoded, places: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """Return the token ids of such a line, where the tokens of each blank are replaced by one id of `marks`."""
    found: list[int] = []
    last = None
    for token, (begin, end), source in zip(encoded.ids, encoded.spans, encoded.sources, strict=True):
        # The space that a tokenizer adds before every text has an empty span.
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
    """Return the line with the words in its blanks. If there are fewer words than blanks, the rest stay blank."""
    parts, waiting = line.split(BLANK), iter(words)
    return "".join(part + next(waiting, BLANK) for part in parts[:-1]) + parts[-1]
