"""Filling in the middle (Bavarian et al. 2022): a text is cut in three, and its middle comes last.

What a decoder learns from `before, after, middle` is to write what stands between two texts. Where a text is cut is a
function of the seed and the text.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from glassformer.data.readers.text_documents import Document


class Cut(NamedTuple):
    """A text in three; together they are the text. A text that was left whole has no middle and nothing after."""

    before: str
    middle: str | None = None
    after: str = ""


def cut_document(document: Document, *, chance: float, longest: int, seed: int) -> Iterator[Cut]:
    """The pieces of a document, each cut in three by this chance.

    A piece has at most `longest` characters, if its lines allow, so that a model sees all three parts at once. Pieces
    that are left whole stay together.
    """
    key = hashlib.blake2b(f"{seed} {document.text}".encode(errors="replace"), digest_size=8)
    random = Random(key.hexdigest())
    whole: list[str] = []
    for piece in _pieces(document.text, longest):
        if random.random() >= chance:
            whole.append(piece)
            continue
        if whole:
            yield Cut("".join(whole))
            whole = []
        first, second = sorted(random.randint(0, len(piece)) for _ in range(2))
        yield Cut(piece[:first], piece[first:second], piece[second:])
    if whole:
        yield Cut("".join(whole))


def _pieces(text: str, longest: int) -> Iterator[str]:
    """Lines that follow each other, as many as fit."""
    kept: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        if kept and size + len(line) > longest:
            yield "".join(kept)
            kept, size = [], 0
        kept.append(line)
        size += len(line)
    if kept:
        yield "".join(kept)


def encode_cuts(
    cuts: Sequence[Cut], encode_batch: Callable[[list[str]], list[list[int]]], marks: tuple[int, int, int]
) -> list[list[int]]:
    """The tokens that a model learns: the text itself; or the three marks, before, after and middle behind each."""
    parts = [part for cut in cuts for part in (cut.before, cut.after, cut.middle) if part is not None]
    encoded = iter(encode_batch(parts))
    found = []
    for cut in cuts:
        before, after = next(encoded), next(encoded)
        if cut.middle is None:
            found.append(before)
        else:
            found.append([marks[0], *before, marks[1], *after, marks[2], *next(encoded)])
    return found
