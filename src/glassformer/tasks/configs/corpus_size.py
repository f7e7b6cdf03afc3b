"""The size of a corpus, from which defaults are chosen before there is a tokenizer."""

from collections.abc import Iterable
from typing import NamedTuple

CHARACTERS_PER_TOKEN = 4
"""Of a vocabulary of a few thousand tokens, in European languages."""


class CorpusSize(NamedTuple):
    """How much there is to learn from."""

    examples: int
    source_characters: int
    """That an encoder reads."""
    target_characters: int = 0
    """That a decoder writes."""

    @classmethod
    def measure(cls, sides: Iterable[tuple[str, str]]) -> "CorpusSize":
        """Return the size of a corpus of examples, each a text that is read and a text that is written."""
        examples = read = written = 0
        for source, target in sides:
            examples, read, written = examples + 1, read + len(source), written + len(target)
        return cls(examples, read, written)

    @property
    def tokens(self) -> int:
        """Both sides together, roughly."""
        return max(1, (self.source_characters + self.target_characters) // CHARACTERS_PER_TOKEN)

    def lengths(self) -> tuple[int, int]:
        """The mean number of tokens of an example's source and of its target, roughly; 0 for a side that it lacks."""
        examples = max(self.examples, 1)
        source, target = (
            round(side / examples / CHARACTERS_PER_TOKEN + 1) if side else 0
            for side in (self.source_characters, self.target_characters)
        )
        return source, target
