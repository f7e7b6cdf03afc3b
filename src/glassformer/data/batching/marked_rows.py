"""Tokenized conversations with a mark on each learned token, in files, and their packed training windows.

A window holds several whole conversations, which do not attend to each other. The conversations are packed once, each
into the fullest window that has room for it (best fit, longest first); an epoch uses every window once, in a new order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.packed_windows import PackedBatch
from glassformer.data.batching.token_files import new_token_folder


class MarkedRows:
    """The conversations in a folder that `write_marked_rows` wrote: `rows[n]` is the ids and marks of number n."""

    def __init__(self, folder: Path):
        self.offsets = np.fromfile(folder / "rows.offsets", dtype=np.int64)
        self.n_long = int(self.offsets[0])
        """Number of conversations that were left out because they are longer than the limit."""
        self.offsets[0] = 0
        size = int(self.offsets[-1])
        self._ids: Any = np.memmap(folder / "ids.bin", dtype=np.int32, mode="r") if size else np.zeros(0, np.int32)
        self._marks: Any = np.memmap(folder / "marks.bin", dtype=np.uint8, mode="r") if size else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        begin, end = self.offsets[number : number + 2]
        return self._ids[begin:end], self._marks[begin:end]

    @property
    def lengths(self) -> NDArray[Any]:
        """Number of tokens of each conversation."""
        return np.diff(self.offsets)


def write_marked_rows(folder: Path, rows: Iterable[tuple[Sequence[int], Sequence[bool]]], *, limit: int) -> MarkedRows:
    """Write conversations, given as ids and marks, to `folder`. Those of more than `limit` tokens are left out."""
    offsets, n_long = [0], 0
    with (
        new_token_folder(folder) as work,
        (work / "ids.bin").open("wb") as ids_file,
        (work / "marks.bin").open("wb") as marks_file,
    ):
        for ids, marks in rows:
            if len(ids) > limit:
                n_long += 1
                continue
            ids_file.write(np.asarray(ids, dtype=np.int32).tobytes())
            marks_file.write(np.asarray(marks, dtype=np.uint8).tobytes())
            offsets.append(offsets[-1] + len(ids))
        offsets[0] = n_long
        (work / "rows.offsets").write_bytes(np.asarray(offsets, dtype=np.int64).tobytes())
    return MarkedRows(folder)


@dataclass
class MarkedBatches:
    """The training batches of conversations: `batches[n]` is batch number n, counted across epochs."""

    rows: MarkedRows
    context: int
    """Number of tokens of a window."""
    max_tokens: int = 4096
    """Maximum number of tokens per batch. A batch holds as many windows as fit, but at least one."""
    seed: int = 0
    pad: int = 0
    """Id that fills a window. It is no target, and no conversation attends to it."""

    def __post_init__(self) -> None:
        self.windows = pack(self.rows.lengths, self.context)
        self.n_rows_per_batch = min(max(1, self.max_tokens // self.context), max(1, len(self.windows)))
        self._drawn: tuple[int, NDArray[Any]] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch, rounded up: the last one may contain windows of the next epoch."""
        return -(-len(self.windows) // self.n_rows_per_batch)

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the first window in the batch with this number."""
        return number * self.n_rows_per_batch // len(self.windows)

    def n_rows(self, number: int) -> int:
        """Return the number of windows in the batch with this number, which is the same for all batches."""
        return self.n_rows_per_batch

    def padding_share(self) -> float:
        """Return the fraction of an epoch's tokens that are padding."""
        return 1 - int(self.rows.lengths.sum()) / (len(self.windows) * self.context)

    def __getitem__(self, number: int) -> PackedBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        shape = (self.n_rows_per_batch, self.context)
        tokens = np.full(shape, self.pad, dtype=np.int64)
        targets = np.full(shape, IGNORED, dtype=np.int64)
        numbers = np.zeros(shape, dtype=np.int64)
        for row in range(self.n_rows_per_batch):
            end = 0
            for place, index in enumerate(self._window(number * self.n_rows_per_batch + row)):
                ids, marks = self.rows[index]
                begin, end = end, end + len(ids)
                tokens[row, begin:end] = ids
                targets[row, begin : end - 1] = np.where(marks[1:] != 0, ids[1:], IGNORED)
                numbers[row, begin:end] = place
            numbers[row, end:] = numbers[row, max(end - 1, 0)] + 1
        return PackedBatch(*map(torch.from_numpy, (tokens, targets, numbers)))

    def _window(self, number: int) -> list[int]:
        epoch, place = divmod(number, len(self.windows))
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, np.random.default_rng([self.seed, epoch]).permutation(len(self.windows))
        return self.windows[int(self._drawn[1][place])]


def pack(lengths: NDArray[Any], size: int) -> list[list[int]]:
    """Return windows, lists of the indices of texts whose lengths sum to at most `size`, by best fit, longest first."""
    by_room: list[list[int]] = [[] for _ in range(size + 1)]
    windows: list[list[int]] = []
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        room = next((room for room in range(length, size + 1) if by_room[room]), None)
        if room is None:
            window, room = len(windows), size
            windows.append([])
        else:
            window = by_room[room].pop()
        windows[window].append(index)
        by_room[room - length].append(window)
    return windows
