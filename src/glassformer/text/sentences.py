"""A text to its sentences, by the plainest rule there is."""

import re

# The abbreviations that most often stand before a capital letter or a number.
BREAK = re.compile(r"(?<=[.!?])(?<!\b(?:e\.g|i\.e|cf\.|Dr\.|Mr\.))[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])|\n+")


def split_sentences(text: str) -> list[str]:
    """The sentences of a text: each ends at a line break, or at . ! ? before a space and a capital or a number."""
    return [part.strip() for part in BREAK.split(text) if part.strip()]
