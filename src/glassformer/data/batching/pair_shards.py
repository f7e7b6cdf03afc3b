"""Tokenized sentence pairs in shards: parts of a corpus of limited size. Importing this module does not import torch.

A shard is a folder of token files (`token_files.py`) with `cells.bin`: for each pair of lengths, source and target, the
number of pairs that have them. The batches of a shard are counted from its cells, so that no shard is opened before one
of its batches is needed. Open shards hold the offsets of their sentences; ids are read when they are needed. (Mapped
files would count as memory of the process once they are read, and a file that was cut off would kill it.)
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glassformer.data.batching.data_order import LengthCells, Numbers, count_cells, grid
from glassformer.data.batching.token_files import SIDES, EncodeBatch, Ids, Kept, TextPair, write_token_files

SHARD_ROWS = 1 << 18
"""Largest number of pairs in a shard."""
CELLS = "cells.bin"


def write_pair_shards(
    folder: Path,
    pairs: Iterable[TextPair],
    encode_source: EncodeBatch,
    encode_target: EncodeBatch,
    *,
    max_len: int,
    kept: Kept = "none",
    shard_rows: int = SHARD_ROWS,
) -> tuple[list[Path], int]:
    """Tokenize pairs into shards of at most `shard_rows` pairs, in folders inside `folder`, and return the folders.

    The second result is the number of pairs that were too long (`write_token_files`). A shard without pairs is not
    written.
    """
    found: list[Path] = []
    n_long, iterator = 0, iter(pairs)
    for first in iterator:
        shard = folder / f"{len(found):05d}"
        some = _chain(first, islice(iterator, shard_rows - 1))
        files = write_token_files(shard, some, encode_source, encode_target, max_len=max_len, kept=kept)
        n_long += files.n_long
        if not len(files):
            for file in shard.iterdir():
                file.unlink()
            shard.rmdir()
            continue
        cells = count_cells(*(files.lengths(side) for side in SIDES))
        (shard / CELLS).write_bytes(np.stack(cells, 1).astype("<i4").tobytes())
        found.append(shard)
    return found, n_long


def _chain(first: TextPair, others: Iterable[TextPair]) -> Iterator[TextPair]:
    yield first
    yield from others


class CellTable(NamedTuple):
    """How many pairs of a shard have each combination of lengths, END not counted."""

    source: Numbers
    target: Numbers
    counts: Numbers

    @property
    def n_pairs(self) -> int:
        """Return the number of pairs."""
        return int(self.counts.sum())

    @property
    def n_tokens(self) -> int:
        """Return the number of tokens of all sources and targets, with one END each."""
        return int(((self.source + self.target + 2) * self.counts).sum())

    def rounded(self, step: int) -> LengthCells:
        """Return the cells of the data order: END is counted, and lengths are rounded by `grid` with this `step`."""
        return count_cells(grid(self.source + 1, step), grid(self.target + 1, step), self.counts)


def read_cells(shard: Path) -> CellTable:
    """Read the cells of a shard."""
    return CellTable(*np.fromfile(shard / CELLS, dtype="<i4").reshape(-1, 3).astype(np.int64).T)


class PairShard:
    """An open shard: the lengths of its pairs and, read when needed, their ids."""

    def __init__(self, folder: Path):
        self._offsets = {side: np.fromfile(folder / f"{side}.offsets", dtype=np.int64) for side in SIDES}
        self._paths = {side: folder / f"{side}.bin" for side in SIDES}
        self._open: dict[str, int] = {}
        for side, path in self._paths.items():
            self._open[side] = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        for descriptor in getattr(self, "_open", {}).values():
            os.close(descriptor)

    def lengths(self, side: str) -> Numbers:
        """Return the number of tokens of every source, or of every target."""
        return np.diff(self._offsets[side])

    def ids(self, side: str, index: int) -> Ids:
        """Return the token ids of the source or target of pair `index`, without BEGIN and END."""
        begin, end = self._offsets[side][index : index + 2].tolist()
        return read_ids(self._open[side], begin, end, self._paths[side])


def read_ids(descriptor: int, begin: int, end: int, path: Path) -> Ids:
    """Return the ids from `begin` up to, but not including, `end` of an open file. `path` names it in errors."""
    data = os.pread(descriptor, 4 * (end - begin), 4 * begin)
    if len(data) != 4 * (end - begin):
        raise OSError(f"{path} ends before token {end:,}: the file was cut off; prepare the data again")
    return np.frombuffer(data, dtype=np.int32)
