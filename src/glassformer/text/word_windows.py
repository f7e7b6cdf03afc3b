"""Map the words of a sentence to its tokens, and split long sentences into windows, for tagging."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from glassformer.text.encoded import Encoded


class Window(NamedTuple):
    """A part of a sentence that the model reads at once: the words from index `begin` to `end`.

    Only the words from `first` to `last` are predicted; the others are context. `last` and `end` are exclusive.
    """

    begin: int
    first: int
    last: int
    end: int


def joined(words: Sequence[str]) -> str:
    """Return the words joined by spaces, which is the text that is tokenized."""
    return " ".join(words)


def first_pieces(words: Sequence[str], encoded: Encoded) -> list[int | None]:
    """Return the index in `encoded` of each word's first token. `encoded` is the encoding of `joined(words)`.

    The index is None for a word without tokens: one beyond a truncation, or one whose characters the tokenizer drops,
    as BERT drops control characters.
    """
    found: list[int | None] = [None] * len(words)
    for place, word in enumerate(word_of_each(words, encoded)):
        if word is not None and found[word] is None:
            found[word] = place
    return found


def word_of_each(words: Sequence[str], encoded: Encoded) -> list[int | None]:
    """Return, for each token of `encoded`, the index of the first word that it overlaps; None for a special token.

    `encoded` is the encoding of `joined(words)`. A space belongs to the next word.
    """
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    found: list[int | None] = []
    for (begin, end), source in zip(encoded.spans, encoded.sources, strict=True):
        word = bisect_right(ends, begin)  # the first word that ends after the token's start
        is_part = source is not None and word < len(words) and ends[word] - len(words[word]) <= end
        found.append(word if is_part else None)
    return found


def windows(costs: Sequence[int], room: int) -> list[Window]:
    """Split a sentence into windows of at most `room` tokens. Each word is predicted in exactly one of them.

    `costs` is the number of tokens of each word. About half of a window's tokens are predicted, and a quarter on each
    side is context. A word of more than `room` tokens is the only predicted word of its window; the caller must
    truncate it.
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
