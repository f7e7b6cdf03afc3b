"""Counted nouns for messages: "1 shard", "2,000 shards"."""


def counted(number: int, plural: str, singular: str = "") -> str:
    """Return a number and a noun in the form that fits it: `counted(1, "shards")` is "1 shard".

    `plural` is the noun for all numbers but 1. `singular` is the noun for 1, if it is not `plural` without its last
    letter.
    """
    return f"{number:,} {(singular or plural[:-1]) if number == 1 else plural}"
