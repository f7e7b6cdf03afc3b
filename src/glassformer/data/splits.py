"""Train, validation and test by a hash of the source: the same sentence is always on the same side, in every run."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from glassformer.data.pairs import Pair

Split = Literal["train", "valid", "test"]


def split_of(source: str, *, valid: float = 0.02, test: float = 0.02) -> Split:
    """The side of a pair, by its source alone, so that no source stands on two sides. Case and spaces don't matter."""
    key = " ".join(source.lower().split()).encode()
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
    if place < test:
        return "test"
    return "valid" if place < test + valid else "train"


@dataclass(frozen=True)
class SplitPairs:
    """The pairs of one side, looked for anew in each pass: a corpus may be larger than memory."""

    pairs: Iterable[Pair]
    side: Split
    valid: float
    test: float

    @property
    def skipped(self) -> Counter[str]:
        """Bad records on all sides together, in the last pass."""
        return Counter(getattr(self.pairs, "skipped", ()))

    def __iter__(self) -> Iterator[Pair]:
        for pair in self.pairs:
            if split_of(pair.source, valid=self.valid, test=self.test) == self.side:
                yield pair


def split_pairs(pairs: Iterable[Pair], *, valid: float = 0.04, test: float = 0.04) -> dict[Split, SplitPairs]:
    """All three sides of pairs that can be gone through more than once."""
    sides: tuple[Split, ...] = ("train", "valid", "test")
    return {side: SplitPairs(pairs, side, valid, test) for side in sides}
