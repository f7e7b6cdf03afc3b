"""Split data into train, validation and test by a hash of the text, so that a text is always in the same split."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from glassformer.data.readers.pairs import Pair

Split = Literal["train", "valid", "test"]
Example = TypeVar("Example")


def split_of(text: str, *, valid: float = 0.02, test: float = 0.02) -> Split:
    """Return the split of a text. Case and spaces are ignored, so that near duplicates stay together."""
    key = " ".join(text.lower().split()).encode()
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
    if place < test:
        return "test"
    return "valid" if place < test + valid else "train"


@dataclass(frozen=True)
class SplitExamples(Generic[Example]):
    """The examples of one split, filtered again in each pass, so that a corpus may be larger than memory."""

    examples: Iterable[Example]
    text: Callable[[Example], str]
    side: Split
    valid: float
    test: float

    @property
    def skipped(self) -> Counter[str]:
        """Return the bad records of all splits in the last pass."""
        return Counter(getattr(self.examples, "skipped", ()))

    def __iter__(self) -> Iterator[Example]:
        for example in self.examples:
            if split_of(self.text(example), valid=self.valid, test=self.test) == self.side:
                yield example


def split_examples(
    examples: Iterable[Example], text: Callable[[Example], str], *, valid: float = 0.04, test: float = 0.04
) -> dict[Split, SplitExamples[Example]]:
    """Split re-iterable examples. `text` returns the text that decides an example's split."""
    sides: tuple[Split, ...] = ("train", "valid", "test")
    return {side: SplitExamples(examples, text, side, valid, test) for side in sides}


def split_pairs(pairs: Iterable[Pair], *, valid: float = 0.04, test: float = 0.04) -> dict[Split, SplitExamples[Pair]]:
    """Split pairs by their sources."""
    return split_examples(pairs, lambda pair: pair.source, valid=valid, test=test)
