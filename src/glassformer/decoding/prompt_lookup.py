"""Speculative decoding without a second model: guess the next tokens from an earlier place in the same text.

Summaries, answers about a text, code and conversations repeat parts of their input. If the last few tokens
occurred before, the tokens that followed them there are proposed (prompt lookup decoding; Saxena 2023). The model then
reads the proposal in one pass and chooses its own token at each position; the tokens are kept as long as they agree
(`Engine`). A wrong guess costs time, never a different result, whether tokens are chosen greedily or sampled: the
tokens are those that single steps choose. `ProposalLength` limits that time: after wrong guesses fewer tokens are
proposed, and then none for a while.

>>> lookup = PromptLookup([5, 6, 7, 8, 9, 5, 6])
>>> lookup.propose(3)
[7, 8, 9]
"""

from collections.abc import Iterable

NGRAM_SIZES = (3, 2)
"""How many last tokens are looked up, the longest first. Matches of a single token are rarely right."""


MAX_PAUSE = 32
"""The most steps without a proposal after wrong ones."""


class ProposalLength:
    """How many tokens to propose next: more after right proposals, fewer or none after wrong ones.

    Lengths are powers of 2 or `most`, because the verification of each length must be recorded once
    (`runtime/pool_runner.py`). The first proposal has 2 tokens. Each wrong proposal doubles the number of steps without
    one that follow the next wrong proposal.

    >>> length = ProposalLength(8)
    >>> length.note(proposed=2, accepted=2)
    >>> length.next()
    4
    """

    def __init__(self, most: int):
        self._most = most
        self._length = min(2, most)
        self._pause, self._next_pause = 0, 1

    def next(self) -> int:
        """Return the number of tokens to propose in this step; 0 during a pause, which this step shortens."""
        if self._pause:
            self._pause -= 1
            return 0
        return self._length

    def note(self, proposed: int, accepted: int) -> None:
        """Note how many of the proposed tokens were right."""
        if accepted:
            self._next_pause = 1
            self._length = min(2 * self._length, self._most) if accepted == proposed else floor_to_power(accepted)
        else:
            self._length = 1
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, MAX_PAUSE)


def floor_to_power(number: int) -> int:
    """Return the highest power of 2 up to a number; 0 for 0."""
    return 1 << number.bit_length() - 1 if number else 0


class PromptLookup:
    """An index of the n-grams of a growing text. Adding a token and proposing take constant time."""

    def __init__(self, tokens: Iterable[int] = ()):
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        """Where the latest occurrence of each n-gram ends, except for those at the end of the text."""
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Append a token to the text."""
        for ngram in self._last_ngrams():
            self._ends[ngram] = len(self._tokens)
        self._tokens.append(token)

    def propose(self, count: int) -> list[int]:
        """Return up to `count` tokens that followed the latest occurrence of the last tokens; [] if there is none."""
        for ngram in self._last_ngrams():
            if ngram in self._ends:
                return self._tokens[self._ends[ngram] : self._ends[ngram] + count]
        return []

    def _last_ngrams(self) -> list[tuple[int, ...]]:
        return [tuple(self._tokens[-size:]) for size in NGRAM_SIZES if len(self._tokens) >= size]
