"""Map words to tokens, and split long sentences into windows."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from glassformer.text.encoded import Encoded


class Window(NamedTuple):
    """A window over words `begin` to `end`. Words `first` to `last` are predicted, the rest is context. Ends are
    exclusive.
    """

    begin: int
    first: int
    last: int
    end: int


def joined(words: Sequence[str]) -> str:
    """Join words to the text that is tokenized."""
    return " ".join(words)


def first_pieces(words: Sequence[str], encoded: Encoded) -> list[int | None]:
    """Return the position of each word's first token in `joined` words; None for a word without tokens.

    A tokenizer may drop a character, as BERT drops control characters, and truncated words have no tokens.
    """
    found: list[int | None] = [None] * len(words)
    for place, word in enumerate(word_of_each(words, encoded)):
        if word is not None and found[word] is None:
            found[word] = place
    return found


def word_of_each(words: Sequence[str], encoded: Encoded) -> list[int | None]:
    """Return the first word that each token overlaps. A space belongs to the next word; special tokens give None."""
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    found: list[int | None] = []
    for (begin, end), source in zip(encoded.spans, encoded.sources, strict=True):
        word = bisect_right(ends, begin)  # the first word that ends after the token's start
        is_part = source is not None and word < len(words) and ends[word] - len(words[word]) <= end
        found.append(word if is_part else None)
    return found


def windows(costs: Sequence[int], room: int) -> list[Window]:
    """Return windows of at most `room` tokens in which each word is predicted once; `costs` are tokens per word.

    Half of a window is predicted, a quarter on each side is context. A word longer than the room gets its own window
    and is truncated.
    """
    sums = [0, *accumulate(costs)]
    found, first = [], 0
    while first < len(costs):
        last = max(first + 1, bisect_right(sums, sums[first] + room // 2) - 1)
        spare = max(0, room - (sums[last] - sums[first])) // 2
        begin = next(word for word in range(first + 1) if sums[first] - sums[word] <= spare)
        end = max(last, bisect_right(sums, sums[last] + spare) - 1)
        found.append(Window(begin, first, last, end))
        first = last
    return found
