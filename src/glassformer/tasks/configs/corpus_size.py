"""The size of a training corpus in characters, from which default options are chosen before a tokenizer exists."""

from collections.abc import Iterable
from typing import NamedTuple

CHARACTERS_PER_TOKEN = 4
"""Typical number of characters per token, for European languages and a vocabulary of a few thousand tokens."""


class CorpusSize(NamedTuple):
    """The size of a training corpus: its examples and their characters."""

    examples: int
    """Number of examples."""
    source_characters: int
    """Number of characters that an encoder reads."""
    target_characters: int = 0
    """Number of characters that a decoder writes."""

    @classmethod
    def measure(cls, sides: Iterable[tuple[str, str]]) -> "CorpusSize":
        """Return the size of a corpus of examples, each given as its source text and its target text."""
        examples = read = written = 0
        for source, target in sides:
            examples, read, written = examples + 1, read + len(source), written + len(target)
        return cls(examples, read, written)

    @property
    def tokens(self) -> int:
        """Rough number of tokens of all sources and targets together."""
        return max(1, (self.source_characters + self.target_characters) // CHARACTERS_PER_TOKEN)

    def lengths(self) -> tuple[int, int]:
        """Return the rough mean number of tokens of a source and of a target text; 0 for a side without any text."""
        examples = max(self.examples, 1)
        source, target = (
            round(side / examples / CHARACTERS_PER_TOKEN + 1) if side else 0
            for side in (self.source_characters, self.target_characters)
        )
        return source, target
