"""Fill-in-the-middle data (Bavarian et al. 2022): a text is split in three, and its middle moves to the end.

A decoder trained on `before, after, middle` learns to write the text between two others. The split depends on the seed
and the text only.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from glassformer.data.readers.text_documents import Document


class Cut(NamedTuple):
    """A text split in three; concatenated they give the text. An unsplit text has no middle and no after."""

    before: str
    middle: str | None = None
    after: str = ""


def cut_document(document: Document, *, chance: float, longest: int, seed: int) -> Iterator[Cut]:
    """Split a document into pieces and split each piece in three with probability `chance`.

    A piece has at most `longest` characters if its lines allow, so that a model sees all three parts at once.
    Neighboring unsplit pieces are joined.
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
    """Yield groups of consecutive lines, as many as fit into `longest` characters."""
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
    """Encode cuts. An unsplit text is encoded as it is; a split one as the three marks, each followed by its part."""
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
