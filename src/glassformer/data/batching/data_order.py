"""The data order of training: which rows form batch number n, as a pure function of the seed and n.

A row is the index of a tokenized example, such as a text or a sentence pair.

In a run with A = `accumulate` batches per update, update u takes the batches u * A to u * A + A - 1, unless the batch
grows (`update_batches.py`). Updates are counted from 0, and skipped updates count too (`training/trainer.py`). Language
models read windows instead of rows; `packed_windows.py` decides their order.

Rows are grouped into cells by their lengths, rounded up to a grid. The cells are ordered so that neighbors have similar
lengths, and cut into batches whose padded size stays within the budget. Every epoch shuffles the rows within each cell
and the order of the batches. The number of batches and their shapes stay the same, so batch n is batch n mod (batches
per epoch) of epoch n div (batches per epoch), and seeking to a batch costs nothing.
"""

from typing import NamedTuple

import numpy as np

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def grid(lengths: Numbers, step: int) -> Numbers:
    """Round lengths up to multiples of `step`, and long ones up to coarser multiples.

    For a step of 2 the results are 2, 4, ... 16, 18, 20, ... 32, 36, ...
    """
    fine = np.maximum(step, 2.0 ** np.floor(np.log2(np.maximum(lengths, 1)) - 3)).astype(np.int64)
    return -(-lengths // fine) * fine


class LengthCells(NamedTuple):
    """The cells of some rows: for each combination of lengths, how many rows have it.

    The cells are in the order in which rows are cut into batches. Neighbors have similar lengths: the first lengths
    rise within every other second length and fall within the rest.
    """

    first: Numbers
    """The length of the rows of each cell; for sentence pairs that of the source."""
    second: Numbers
    """The second length, that of the target; 0 for rows of one text."""
    counts: Numbers
    """The number of rows in each cell."""


def sort_cells(first: Numbers, second: Numbers) -> Numbers:
    """Return a number for each row, equal for rows of the same cell, by which cells are in the order of `LengthCells`.

    `first` and `second` are the lengths of each row, already rounded by `grid`.
    """
    rank = np.cumsum(np.bincount(second) > 0) - 1
    width = int(first.max()) + 1
    is_rising = rank[second] % 2 == 0
    return rank[second] * width + np.where(is_rising, first, width - 1 - first)


def count_cells(first: Numbers, second: Numbers, counts: Numbers | None = None) -> LengthCells:
    """Return the cells of rows with these lengths. With `counts`, each length stands for so many rows."""
    keys, places, inverse = np.unique(sort_cells(first, second), return_index=True, return_inverse=True)
    weights = np.ones(len(first), dtype=np.int64) if counts is None else counts
    total = np.bincount(inverse.reshape(-1), weights=weights, minlength=len(keys)).astype(np.int64)
    return LengthCells(first[places], second[places], total)


class BatchShapes:
    """The cuts of sorted rows into batches of at most `max_tokens` padded tokens, which are the same in every epoch.

    They are computed from the cells alone, so that their cost depends on the number of batches, not of rows.
    """

    def __init__(self, cells: LengthCells, max_tokens: int):
        if not len(cells.counts):
            raise ValueError("the corpus is empty: expected at least one example")
        longest = int(np.maximum(cells.first, cells.second).max())
        if longest > max_tokens:
            raise ValueError(
                f"max_tokens={max_tokens}: expected at least {longest}, the length of the longest sentence"
            )
        self._cells = cells
        self.cuts: list[int] = _cut(cells, max_tokens)
        """The index of the first sorted row of each batch, and the number of rows."""

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.cuts) - 1

    def padded_tokens(self) -> int:
        """Return the number of tokens of all batches, padding included; for sentence pairs, of both sides."""
        cuts, ends = np.array(self.cuts), np.cumsum(self._cells.counts)
        # The cells of each batch, as interleaved bounds for reduceat; the last bound may not be the number of cells.
        bounds = np.empty(2 * len(self), dtype=np.int64)
        bounds[::2] = np.searchsorted(ends, cuts[:-1], side="right")
        bounds[1::2] = np.searchsorted(ends, cuts[1:], side="left") + 1
        heights = np.diff(cuts)
        return sum(
            int((np.maximum.reduceat(np.append(sides, 0), bounds)[::2] * heights).sum())
            for sides in (self._cells.first, self._cells.second)
        )


def _cut(cells: LengthCells, max_tokens: int) -> list[int]:
    cuts, widest, place = [0], 0, 0
    widths = np.maximum(cells.first, cells.second).tolist()
    for width, count in zip(widths, cells.counts.tolist(), strict=True):
        if (place - cuts[-1] + 1) * max(widest, width) > max_tokens:
            cuts.append(place)
            widest = 0
        widest, place = max(widest, width), place + count
        while (following := cuts[-1] + max_tokens // widest) < place:
            cuts.append(following)
            widest = width
    return [*cuts, place]


class BatchPlan:
    """Assigns rows (tokenized examples) to batches of at most `max_tokens` padded tokens, and orders the batches.

    `first` holds the length of each row, already rounded by `grid`. For sentence pairs it holds the source lengths and
    `second` the target lengths; the longer side counts for `max_tokens`. The order is drawn from the `seed`, the epoch
    and the number of the `shard`, if the rows are part of a larger corpus.
    """

    def __init__(
        self, first: Numbers, second: Numbers | None = None, *, max_tokens: int, seed: int, shard: int | None = None
    ):
        if not len(first):
            raise ValueError("the corpus is empty: expected at least one example")
        second = np.zeros_like(first) if second is None else second
        self._entropy = [seed] if shard is None else [seed, shard]
        self._cells = sort_cells(first, second)
        self._shapes = BatchShapes(count_cells(first, second), max_tokens)
        self._drawn: tuple[int, Numbers, Numbers] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self._shapes)

    def rows_of_batch(self, number: int) -> Numbers:
        """Return the indices of the examples in the batch with this number.

        They depend on the seed and the number only. Numbers continue across epochs.
        """
        epoch, position = divmod(number, len(self))
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, *self._draw(epoch)
        _, order, parts = self._drawn
        part = int(parts[position])
        return order[self._shapes.cuts[part] : self._shapes.cuts[part + 1]]

    def padded_tokens(self) -> int:
        """Return the number of tokens in an epoch, padding included; for sentence pairs, of both source and target."""
        return self._shapes.padded_tokens()

    def _draw(self, epoch: int) -> tuple[Numbers, Numbers]:
        """Return the rows of an epoch, sorted by cell and shuffled within each, and the order of the batches."""
        random = np.random.default_rng([*self._entropy, epoch])
        order = np.lexsort((random.random(len(self._cells)), self._cells))
        return order, random.permutation(len(self))


class PlannedBatches:
    """Base class of training batches whose rows a `BatchPlan` chooses. Batches are numbered across epochs, from 0."""

    _plan: BatchPlan

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self._plan)

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the batch with this number."""
        return number // len(self)

    def n_rows(self, number: int) -> int:
        """Return the number of examples in the batch with this number."""
        return len(self._plan.rows_of_batch(number))
