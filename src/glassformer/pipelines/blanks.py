"""TODO."""

from collections.abc import Iterable, Sequence

from glassformer.data.readers.plain_texts import PlainText
from glassformer.text.encoded import Encoded

BLANK = "___"
"""What is to be filled in, where a line is typed."""


GAP_TOKENS = ("<before>", "<after>", "<middle>")
"""Special tokens of a code model: before the text in front of a gap, before the text after it, and before the gap's
own text. Plain text never encodes to them."""
STAND_IN = "x"
"""What a blank is while a line is cut into tokens: a word by itself, whatever stands beside it."""


def texts_of(examples: Iterable[PlainText]) -> Iterable[str]:
    """Their texts, as they are asked for."""
    return (example.text for example in examples)


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
