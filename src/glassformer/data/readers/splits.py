"""Split data into train, validation and test sets by a hash of the text, so that a text is always in the same split."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
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
    return _split_at(_place_of(text), test, 1 - valid)


def _place_of(text: str) -> float:
    """Return the hash of a text as a number from 0 to 1. Case and spaces are ignored."""
    key = " ".join(text.lower().split()).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64


def _split_at(place: float, test: float, valid_from: float) -> Split:
    if place < test:
        return "test"
    return "valid" if place >= valid_from else "train"


def is_held_out(text: str, valid_from: float) -> bool:
    """Return whether a text is for validation, where hashes from `valid_from` on are (see `Shares.valid_from`)."""
    return _split_at(_place_of(text), 0.0, valid_from) == "valid"


class Shares(Generic[Example]):
    """How examples are divided: the shares of the validation and test sets, and the text that decides.

    `text` returns the text of an example. If no text falls into the share of the validation set, as may happen with
    few examples, the one that comes closest to it does, unless it is the only one.
    """

    def __init__(self, examples: Iterable[Example], text: Callable[[Example], str], valid: float, test: float):
        self.examples, self.text, self.valid, self.test = examples, text, valid, test

    @cached_property
    def valid_from(self) -> float:
        """The number from 0 to 1 from which on the hash of a text makes it a validation text."""
        wanted = 1 - self.valid
        if self.valid == 0:
            return wanted
        lowest, highest = 1.0, self.test
        for example in self.examples:  # usually ends after a few examples
            place = _place_of(self.text(example))
            if place >= wanted:
                return wanted
            if place >= self.test:
                lowest, highest = min(lowest, place), max(highest, place)
        return highest if lowest < highest else wanted

    def split_of(self, example: Example) -> Split:
        """Return the split of an example: "train", "valid" or "test"."""
        return _split_at(_place_of(self.text(example)), self.test, self.valid_from)


@dataclass(frozen=True)
class SplitExamples(Generic[Example]):
    """The examples of the split `side`, selected anew in each pass, so that a corpus may be larger than memory."""

    shares: Shares[Example]
    side: Split

    @property
    def skipped(self) -> Counter[str]:
        """Return how many bad records the last pass skipped, by problem, for all splits together."""
        return Counter(getattr(self.shares.examples, "skipped", ()))

    def __iter__(self) -> Iterator[Example]:
        _ = self.shares.valid_from  # before the pass, because computing it makes another one
        for example in self.shares.examples:
            if self.shares.split_of(example) == self.side:
                yield example


def split_examples(
    examples: Iterable[Example], text: Callable[[Example], str], *, valid: float = 0.04, test: float = 0.04
) -> dict[Split, SplitExamples[Example]]:
    """Return the examples of each split: "train", "valid" and "test".

    `text` returns the text that decides an example's split. `valid` and `test` are the shares of those sets. Each pass
    through a split iterates over all of `examples`, so these must allow several passes.
    """
    sides: tuple[Split, ...] = ("train", "valid", "test")
    shares = Shares(examples, text, valid, test)
    return {side: SplitExamples(shares, side) for side in sides}


def split_pairs(pairs: Iterable[Pair], *, valid: float = 0.04, test: float = 0.04) -> dict[Split, SplitExamples[Pair]]:
    """Return the sentence pairs of each split: "train", "valid" and "test". A pair's source text decides its split.

    `pairs` must allow several passes.
    """
    return split_examples(pairs, lambda pair: pair.source, valid=valid, test=test)
