"""Split data into train, validation and test sets by a hash of the text, so that a text is always in the same split."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from glassformer.data.readers.pairs import Pair

Split = Literal["train", "valid", "test"]
Example = TypeVar("Example")


def split_of(text: str, *, valid: float = 0.02, test: float = 0.02) -> Split:
    """Return the split of a text: "train", "valid" or "test".

    `valid` and `test` are the shares of the validation and test sets. Case and spaces are ignored, so that near
    duplicates are in the same split. A validation text is one for any share of test texts: if a file is made of all
    texts but the test set and is split again, without a test set, its validation texts are the same.
    """
    key = " ".join(text.lower().split()).encode()
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
    if place < test:
        return "test"
    return "valid" if place >= 1 - valid else "train"


@dataclass(frozen=True)
class SplitExamples(Generic[Example]):
    """The examples of the split `side`, selected anew in each pass, so that a corpus may be larger than memory.

    `text` returns the text that decides an example's split. `valid` and `test` are the shares of those sets.
    """

    examples: Iterable[Example]
    text: Callable[[Example], str]
    side: Split
    valid: float
    test: float

    @property
    def skipped(self) -> Counter[str]:
        """Return how many bad records the last pass skipped, by problem, for all splits together."""
        return Counter(getattr(self.examples, "skipped", ()))

    def __iter__(self) -> Iterator[Example]:
        for example in self.examples:
            if split_of(self.text(example), valid=self.valid, test=self.test) == self.side:
                yield example


def split_examples(
    examples: Iterable[Example], text: Callable[[Example], str], *, valid: float = 0.04, test: float = 0.04
) -> dict[Split, SplitExamples[Example]]:
    """Return the examples of each split: "train", "valid" and "test".

    `text` returns the text that decides an example's split. `valid` and `test` are the shares of those sets. Each pass
    through a split iterates over all of `examples`, so these must allow several passes.
    """
    sides: tuple[Split, ...] = ("train", "valid", "test")
    return {side: SplitExamples(examples, text, side, valid, test) for side in sides}


def split_pairs(pairs: Iterable[Pair], *, valid: float = 0.04, test: float = 0.04) -> dict[Split, SplitExamples[Pair]]:
    """Return the sentence pairs of each split: "train", "valid" and "test". A pair's source text decides its split.

    `pairs` must allow several passes.
    """
    return split_examples(pairs, lambda pair: pair.source, valid=valid, test=test)
