"""Ids of requests and answers."""

import random

_NUMBERS = random.Random()  # seeded by the system; a call of the system for each id would let other threads run first


def new_id() -> str:
    """Return 32 random hexadecimal digits. They are unique, but not secret."""
    return f"{_NUMBERS.getrandbits(128):032x}"
