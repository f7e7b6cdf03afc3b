"""Ids of requests and answers."""

import random

_NUMBERS = random.Random()  # seeded once; `uuid4` asks the system for each id, which lets other threads run first


def new_id() -> str:
    """Return 32 random hexadecimal digits. They are unique, but not secret."""
    return f"{_NUMBERS.getrandbits(128):032x}"
