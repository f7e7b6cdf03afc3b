"""Batches of preferred and rejected answers, with their log-probabilities under the model before the training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.data.batching.data_order import BatchPlan, Numbers, PlannedBatches, grid
from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.marked_rows import MarkedRows


class PreferenceBatch(NamedTuple):
    """A padded batch of B pairs: B rows with the preferred answers, then B rows with the rejected ones."""

    tokens: Tensor  # (2B, T)
    targets: Tensor  # (2B, T), the token after each of `tokens`, or IGNORED outside the answers
    reference: Tensor  # (2B), log-probabilities of the answers before the training

    @property
    def n_target_tokens(self) -> int:
        """Return the number of pairs, over which the loss is averaged."""
        return len(self.reference) // 2

    @property
    def n_examples(self) -> int:
        """Return the number of pairs, which is half the number of rows."""
        return len(self.reference) // 2

    def slice_rows(self, begin: int, end: int) -> "PreferenceBatch":
        """Return the pairs from `begin` up to, but not including, `end`."""
        half = self.n_target_tokens
        return PreferenceBatch(*(torch.cat((x[begin:end], x[half + begin : half + end])) for x in self))

    def to(self, device: torch.device | str) -> "PreferenceBatch":
        """Return the batch on `device`."""
        return PreferenceBatch(*(x.to(device, non_blocking=True) for x in self))


@dataclass
class PreferenceBatches(PlannedBatches):
    """The training batches: `batches[n]` is batch number n, counted across epochs.

    Rows 2n and 2n + 1 of `rows` are the preferred and the rejected answer of pair n.
    """

    rows: MarkedRows
    reference: NDArray[Any]
    """Log-probability of each row before the training."""
    max_tokens: int = 4096
    """Maximum number of tokens per batch, padding included, of the preferred or the rejected answers."""
    seed: int = 0
    pad: int = 0

    def __post_init__(self) -> None:
        lengths = grid(self.rows.lengths, 8)
        self._plan = BatchPlan(lengths[::2], lengths[1::2], max_tokens=self.max_tokens, seed=self.seed)

    def __getitem__(self, number: int) -> PreferenceBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        return self.collate(self._plan.rows_of_batch(number))

    def collate(self, pairs: Numbers | Sequence[int]) -> PreferenceBatch:
        """Return the pairs with these indices as a batch."""
        places = [2 * int(pair) + side for side in (0, 1) for pair in pairs]
        found = [self.rows[place] for place in places]
        width = int(grid(np.array([max(len(ids) for ids, _ in found)]), 8)[0])
        tokens = np.full((len(found), width), self.pad, dtype=np.int64)
        targets = np.full((len(found), width), IGNORED, dtype=np.int64)
        for row, (ids, marks) in enumerate(found):
            tokens[row, : len(ids)] = ids
            targets[row, : len(ids) - 1] = np.where(marks[1:] != 0, ids[1:], IGNORED)
        reference = self.reference[places].astype(np.float32)
        return PreferenceBatch(*map(torch.from_numpy, (tokens, targets, reference)))
