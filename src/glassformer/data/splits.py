"""Train, validation and test by a hash of the source: the same sentence is always on the same side, in every run."""

import hashlib
from typing import Literal

Split = Literal["train", "valid", "test"]


def split_of(source: str, *, valid: float = 0.02, test: float = 0.02) -> Split:
    """The side of a pair, by its source alone, so that no source stands on two sides. Case and spaces don't matter."""
    key = " ".join(source.lower().split()).encode()
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
    if place < test:
        return "test"
    return "valid" if place < test + valid else "train"
