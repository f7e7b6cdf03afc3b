"""Which tokens a word became, and windows over sentences that are too long to be read at once."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from glassformer.text.encoded import Encoded


class Window(NamedTuple):
    """Words that are read together, `begin` to `end`; those from `first` to `last` are answered, the rest is context.

    The ends are not included.
    """

    begin: int
    first: int
    last: int
    end: int


def joined(words: Sequence[str]) -> str:
    """Words as the text that a tokenizer reads."""
    return " ".join(words)


def first_pieces(words: Sequence[str], encoded: Encoded) -> list[int | None]:
    """Where the first token of each word stands, of `joined` words; None for a word that became none.

    A tokenizer may read a character as nothing at all, such as BERT's a control character; and what was cut off has no
    token either.
    """
    found: list[int | None] = [None] * len(words)
    for place, word in enumerate(word_of_each(words, encoded)):
        if word is not None and found[word] is None:
            found[word] = place
    return found


def word_of_each(words: Sequence[str], encoded: Encoded) -> list[int | None]:
    """Which word each token belongs to: the first it has a character of; a mere space belongs to the word after it.

    None for a special token.
    """
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    found: list[int | None] = []
    for (begin, end), source in zip(encoded.spans, encoded.sources, strict=True):
        word = bisect_right(ends, begin)  # the first that ends behind the token's beginning
        is_part = source is not None and word < len(words) and ends[word] - len(words[word]) <= end
        found.append(word if is_part else None)
    return found


def windows(costs: Sequence[int], room: int) -> list[Window]:
    """Windows of at most `room` tokens over words that cost so many each, so that each word is answered once.

    Half of a window is answered, and a quarter on either side is context. A word that is longer than all that has a
    window of its own, and will be cut.
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
