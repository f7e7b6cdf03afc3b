"""Turn each blank (`___`) of a line into one mask token for a model, and put words into blanks. Imports no torch."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from glassformer.data.readers.plain_texts import PlainText
from glassformer.text.encoded import Encoded

BLANK = "___"
"""How a user writes a blank in a line."""


GAP_TOKENS = ("<before>", "<after>", "<middle>")
"""Special tokens of a code model that fills in gaps. They mark where the text before the gap, the text after the gap
and the text of the gap itself begin. Plain text never encodes to them."""
OTHER_GAP_TOKENS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("\N{LOWER ONE EIGHTH BLOCK}<PRE>", "\N{LOWER ONE EIGHTH BLOCK}<SUF>", "\N{LOWER ONE EIGHTH BLOCK}<MID>"),
)
"""The same tokens of pretrained code models: Qwen-Coder, StarCoder and SmolLM, SantaCoder, CodeLlama."""
STAND_IN = "x"
"""Replaces a blank while a line is tokenized, so that it becomes a separate word."""


class BlankWord(NamedTuple):
    """A word that may fill a blank, and its probability."""

    word: str
    probability: float


def texts_of(examples: Iterable[PlainText]) -> Iterable[str]:
    """Return an iterator over the `text` of each example."""
    return (example.text for example in examples)


def without_blanks(line: str) -> tuple[str, list[tuple[int, int]]]:
    """Replace each blank of a line by the word STAND_IN, so that the line can be tokenized.

    Returns the new line, and a (start, end) tuple for each blank: the characters of the new line that hold its STAND_IN
    and the spaces before that.
    """
    parts = line.split(BLANK)
    places, length = [], 0
    for part in parts[:-1]:
        end = length + len(part) + len(STAND_IN)
        places.append((length + len(part.rstrip()), end))
        length = end
    return STAND_IN.join(parts), places


def put_marks(encoded: Encoded, places: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """Return the token ids of a line, with the tokens of each blank replaced by one mask token.

    `encoded` is the tokenized line, and `places` are the character spans of its blanks, both from a result of
    `without_blanks`. The tokens of blank i are replaced by the single token `marks[i]`.
    """
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
    """Return the line with its blanks replaced by `words` in order. Blanks for which there is no word stay blank."""
    parts, waiting = line.split(BLANK), iter(words)
    return "".join(part + next(waiting, BLANK) for part in parts[:-1]) + parts[-1]


def best_choices(blanks: Sequence[Sequence[BlankWord]], n: int) -> list[tuple[tuple[str, ...], float]]:
    """Return the `n` most likely ways to fill all blanks: the words of each, and the mean of their probabilities.

    The mean is geometric, so that it does not shrink with the number of blanks. `blanks` has the most likely words of
    each blank, best first, and at least `n` of them if there are as many.
    """
    found: list[tuple[tuple[str, ...], float]] = [((), 0.0)]  # with the sum of the logarithms
    for words in blanks:
        logs = [math.log(word.probability) if word.probability else -math.inf for word in words]
        # Of the best ways so far and the best words, only pairs with (i + 1) (j + 1) <= n can be among the n best.
        longer = [
            ((*before, word.word), total + log)
            for i, (before, total) in enumerate(found)
            for word, log in zip(words[: n // (i + 1)], logs, strict=False)
        ]
        found = sorted(longer, key=lambda choice: -choice[1])[:n]
    return [(words, math.exp(total / max(len(blanks), 1))) for words, total in found]
