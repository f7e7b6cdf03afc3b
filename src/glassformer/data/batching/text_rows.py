"""Memory-mapped files of tokenized texts, so that a corpus may be larger than memory.

A row is a tokenized text, or a part of one that is too long for the model. `ids.bin` holds the concatenated ids of all
rows, `offsets` the start of each row. The files are streamed into a temporary folder, which is renamed when it
is complete.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from glassformer.data.batching.data_order import Numbers
from glassformer.data.batching.token_files import CHUNK, EncodeBatch, new_token_folder
from glassformer.progress import track


class Rows(Protocol):
    """Protocol of a sequence of rows. `rows[i]` holds the token ids of row i."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Numbers:
        """Return the number of tokens of each row."""

    def __getitem__(self, row: int) -> Numbers: ...


class InMemoryRows:
    """Texts tokenized into rows of at most `longest` tokens each, in memory."""

    def __init__(self, texts: Iterable[str], encode: EncodeBatch, *, longest: int):
        self._rows = [np.array(row, dtype=np.int64) for ids in _encoded(texts, encode) for row in _cut(ids, longest)]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def lengths(self) -> Numbers:
        """Return the number of tokens of each row."""
        return np.array([len(row) for row in self._rows], dtype=np.int64)

    def __getitem__(self, row: int) -> Numbers:
        return self._rows[row]


class TextRows:
    """Rows in a folder that `write_text_rows` wrote."""

    def __init__(self, folder: Path):
        self._offsets = np.fromfile(folder / "offsets", dtype=np.int64)
        # An empty file cannot be mapped.
        file = folder / "ids.bin"
        self._ids = np.memmap(file, dtype=np.int32, mode="r") if file.stat().st_size else np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> Numbers:
        """Return the number of tokens of each row."""
        return np.diff(self._offsets)

    def __getitem__(self, row: int) -> Numbers:
        begin, end = self._offsets[row : row + 2]
        return self._ids[begin:end].astype(np.int64)


def write_text_rows(folder: Path, texts: Iterable[str], encode: EncodeBatch, *, longest: int) -> TextRows:
    """Tokenize `texts`, write them to `folder`, and return them as rows.

    A text of more than `longest` tokens is split into several rows.
    """
    offsets = [0]
    with new_token_folder(folder) as work, (work / "ids.bin").open("wb") as file:
        for ids in _encoded(texts, encode):
            file.write(np.asarray(ids, dtype=np.int32).tobytes())
            for row in _cut(ids, longest):
                offsets.append(offsets[-1] + len(row))
        (work / "offsets").write_bytes(np.asarray(offsets, dtype=np.int64).tobytes())
    return TextRows(folder)


def _encoded(texts: Iterable[str], encode: EncodeBatch) -> Iterator[list[int]]:
    waiting = track(texts, "tokenizing")
    while chunk := list(islice(waiting, CHUNK)):
        yield from encode(chunk)


def _cut(ids: list[int], longest: int) -> Iterator[list[int]]:
    for begin in range(0, len(ids), longest):
        yield ids[begin : begin + longest]
