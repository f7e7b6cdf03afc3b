"""How a tokenizer cuts a text, step by step: its words, and the merges of byte-pair encoding in their order.

Byte-pair encoding starts with single characters (or bytes) and merges neighbors: at each step the pair that comes first
in the list of learned merges, until no pair of the word is in the list.
"""

import json
import weakref
from itertools import pairwise
from typing import Any, NamedTuple

from tokenizers import decoders

MAX_WORD = 200
"""Longer words are listed without their merges: some tokenizers treat the whole text as one word."""


class Merge(NamedTuple):
    """One step of byte-pair encoding: two neighbors become one token. `rank` is the place in the list of merges."""

    left: str
    right: str
    result: str
    rank: int
    word: int
    """The number of the word that the step belongs to."""


class CutText(NamedTuple):
    """A text cut into words, and the tokens of each word; `merges` is None for other kinds than byte-pair encoding."""

    words: list[dict[str, Any]]
    merges: list[Merge] | None


_MERGES: "weakref.WeakKeyDictionary[Any, dict[tuple[str, str], int] | None]" = weakref.WeakKeyDictionary()


def cut_text(tokenizer: Any, text: str) -> CutText:
    """Cut a text as a `Tokenizer` or `PretrainedTokenizer` does, and return its words and merges."""
    inner = tokenizer._inner
    normal = text if inner.normalizer is None else inner.normalizer.normalize_str(text)
    pieces = [normal] if inner.pre_tokenizer is None else [p for p, _ in inner.pre_tokenizer.pre_tokenize_str(normal)]
    ranks = _ranks_of(tokenizer)
    words: list[dict[str, Any]] = []
    merges: list[Merge] = []
    for number, piece in enumerate(pieces):
        tokens = inner.model.tokenize(piece)
        words.append(
            {
                "word": _readable(inner, piece),
                "tokens": [_readable(inner, token.value) for token in tokens],
                "ids": [token.id for token in tokens],
            }
        )
        if ranks is not None and len(piece) <= MAX_WORD:
            for left, right, rank in merge_word(list(piece), ranks):
                left, right = _readable(inner, left), _readable(inner, right)
                merges.append(Merge(left, right, left + right, rank, number))
    return CutText(words, None if ranks is None else merges)


def merge_word(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    """Return the merges of one word in their order: the left part, the right part, and the rank of the pair.

    `parts` are the characters of the word; afterwards they are its tokens.
    """
    steps = []
    while len(parts) > 1:
        pairs = [(ranks[pair], place) for place, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not pairs:
            break
        rank, place = min(pairs)
        steps.append((parts[place], parts[place + 1], rank))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return steps


def _ranks_of(tokenizer: Any) -> dict[tuple[str, str], int] | None:
    """Return the rank of each merge of a tokenizer; None if it is no byte-pair encoding."""
    if tokenizer not in _MERGES:
        found = None
        if type(tokenizer._inner.model).__name__ == "BPE":
            merges = json.loads(tokenizer._inner.to_str())["model"]["merges"]
            pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
            found = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        _MERGES[tokenizer] = found
    return _MERGES[tokenizer]


def _readable(inner: Any, piece: str) -> str:
    """Return a piece as text: bytes become characters, and the mark of SentencePiece a space."""
    if "ByteLevel" in repr(inner.decoder):
        return decoders.ByteLevel().decode([piece])
    return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
