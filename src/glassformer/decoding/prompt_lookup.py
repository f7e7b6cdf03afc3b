"""Speculative decoding without a second model: guess the next tokens from an earlier place in the same text.

Summaries, answers about a text, code and conversations repeat parts of their input. If the last few tokens
occurred before, the tokens that followed them there are proposed (prompt lookup decoding; Saxena 2023). The model then
reads the proposal in one pass and chooses its own token at each position; the tokens are kept as long as they agree
(`Engine`). A wrong guess costs time, never a different result, whether tokens are chosen greedily or sampled: the
tokens are those that single steps choose.

>>> lookup = PromptLookup([5, 6, 7, 8, 9, 5, 6])
>>> lookup.propose(3)
[7, 8, 9]
"""

from collections.abc import Iterable

NGRAM_SIZES = (3, 2)
"""How many last tokens are looked up, the longest first. Matches of a single token are rarely right."""


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
