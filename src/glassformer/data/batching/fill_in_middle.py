"""Fill-in-the-middle data (Bavarian et al. 2022): a text is split in three, and its middle part moves to the end.

A decoder trained on `before, after, middle` learns to write the text between two given texts. The split depends on the
seed and the text only.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from glassformer.data.readers.text_documents import Document


class FillInMiddleParts(NamedTuple):
    """A text split into three parts, which give the text when concatenated.

    A text that is not split is all in `before`; its `middle` is None.
    """

    before: str
    middle: str | None = None
    after: str = ""


def fill_in_middle_parts(document: Document, *, chance: float, longest: int, seed: int) -> Iterator[FillInMiddleParts]:
    """Cut a document into pieces of whole lines, and split each piece in three with probability `chance`.

    A piece has at most `longest` characters, so that a model sees all three parts at once; only a single line may be
    longer. Adjacent pieces that are not split are joined.
    """
    key = hashlib.blake2b(f"{seed} {document.text}".encode(errors="replace"), digest_size=8)
    random = Random(key.hexdigest())
    whole: list[str] = []
    for piece in _pieces(document.text, longest):
        if random.random() >= chance:
            whole.append(piece)
            continue
        if whole:
            yield FillInMiddleParts("".join(whole))
            whole = []
        first, second = sorted(random.randint(0, len(piece)) for _ in range(2))
        yield FillInMiddleParts(piece[:first], piece[first:second], piece[second:])
    if whole:
        yield FillInMiddleParts("".join(whole))


def _pieces(text: str, longest: int) -> Iterator[str]:
    """Yield the text in pieces of consecutive lines, each with as many lines as fit into `longest` characters."""
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


def encode_fill_in_middle(
    texts: Sequence[FillInMiddleParts],
    encode_batch: Callable[[list[str]], list[list[int]]],
    marks: tuple[int, int, int],
) -> list[list[int]]:
    """Return the token ids of each text.

    A text that is not split is encoded as it is. A split one becomes `marks[0]`, before, `marks[1]`, after, `marks[2]`,
    middle. The marks are ids of special tokens.
    """
    parts = [part for text in texts for part in (text.before, text.after, text.middle) if part is not None]
    encoded = iter(encode_batch(parts))
    found = []
    for text in texts:
        before, after = next(encoded), next(encoded)
        if text.middle is None:
            found.append(before)
        else:
            found.append([marks[0], *before, marks[1], *after, marks[2], *next(encoded)])
    return found
