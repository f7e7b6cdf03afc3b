"""Split plain text into words, for tagging.

Words are separated by white space. A run of letters, digits and marks is a word, and so is a run of the same
punctuation character. Three things stay whole: words joined by a single - . , : / & @ or apostrophe (jean-luc, 3.5,
12:30, AT&T, O'Neil), single letters with periods (U.S., e.g.), and 's, which is a word by itself.
"""

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(
    r"""
    (?<![a-z0-9])(?:[a-z]\.){2,}(?![a-z0-9])   # U.S.
    | (?<=[a-z0-9.])'s(?![a-z0-9])             # the 's of Ann's
    | [a-z0-9]+(?:(?!'s(?![a-z0-9]))[-.,:/&@'][a-z0-9]+)*
    | ([^a-z0-9\s])\1*
    """,
    re.VERBOSE,
)


def cut_words(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) character positions of each word in a text; the end is exclusive."""
    return [found.span() for found in _WORD.finditer("".join(map(_shape, text)))]


@lru_cache(4096)
def _shape(character: str) -> str:
    """Return one character that stands for the class of this one when words are matched.

    White space gives " ", an ASCII letter or digit itself in lower case, and other letters, digits and marks "a".
    Punctuation gives itself.
    """
    if character.isspace():
        return " "
    kind = unicodedata.category(character)[0]
    if kind in "LMN":
        lower = character.lower()
        return lower if lower.isascii() else "a"
    return "'" if character == "\N{RIGHT SINGLE QUOTATION MARK}" else character
