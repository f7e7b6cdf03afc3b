"""Batches of labeled texts with a limited number of tokens each, in the order of `data_order.py`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.data.batching.data_order import BatchPlan, Numbers, PlannedBatches, grid

IGNORED = -100
"""The target value that torch's loss functions ignore."""


class LabeledRow(NamedTuple):
    """A tokenized text and its answer, which the model is trained to predict."""

    ids: Sequence[int] | NDArray[Any]
    token_types: Sequence[int] | NDArray[Any]
    answer: Any
    """A class id, or a list of numbers, which has the same length for all rows or one number per token."""


class LabeledBatch(NamedTuple):
    """A padded batch of texts and their answers."""

    tokens: Tensor  # (B, T)
    mask: Tensor  # (B, T), True for real tokens
    token_types: Tensor  # (B, T)
    answers: Tensor  # (B), (B, n) or (B, T)

    @property
    def n_target_tokens(self) -> int:
        """Return the number of answers that are not IGNORED, over which the loss is averaged.

        An answer of several floats counts once; in an answer of several integers, each integer counts.
        """
        return len(self.answers) if self.answers.is_floating_point() else int((self.answers != IGNORED).sum())

    def slice_rows(self, begin: int, end: int) -> "LabeledBatch":
        """Return the examples from `begin` up to, but not including, `end`, with unchanged padding.

        An example of `PairedBatches` has two texts: one in the first half of the rows, one in the second half.
        """
        firsts = range(0, len(self.tokens), max(len(self.answers), 1))
        tokens, mask, token_types = (torch.cat([x[first + begin : first + end] for first in firsts]) for x in self[:3])
        return LabeledBatch(tokens, mask, token_types, self.answers[begin:end])

    def to(self, device: torch.device | str) -> "LabeledBatch":
        """Return the batch on `device`."""
        return LabeledBatch(*(x.to(device, non_blocking=True) for x in self))


def make_batch(rows: Sequence[LabeledRow], *, pad: int, per_token: bool = False) -> LabeledBatch:
    """Return labeled rows as a batch, padded with the id `pad`.

    With `per_token`, an answer has one number per token and is padded with IGNORED.
    """
    width = int(grid(np.array([max(1, *(len(row.ids) for row in rows))]), 2)[0])
    tokens = np.full((len(rows), width), pad, dtype=np.int64)
    types = np.zeros((len(rows), width), dtype=np.int64)
    answers = np.full((len(rows), width), IGNORED) if per_token else np.array([row.answer for row in rows])
    for place, row in enumerate(rows):
        tokens[place, : len(row.ids)] = row.ids
        types[place, : len(row.ids)] = row.token_types
        if per_token:
            answers[place, : len(row.ids)] = row.answer
    mask = torch.arange(width) < torch.tensor([len(row.ids) for row in rows])[:, None]
    numbers = answers.astype(np.float32 if answers.dtype.kind == "f" else np.int64)
    return LabeledBatch(torch.from_numpy(tokens), mask, torch.from_numpy(types), torch.from_numpy(numbers))


class LabeledBatches(PlannedBatches):
    """The training batches of labeled rows: `batches[n]` is batch number n, counted across epochs.

    A labeled row is a tokenized text with its answer. `max_tokens` limits the padded tokens of a batch. With
    `per_token`, an answer has one number per token.
    """

    def __init__(
        self, rows: Sequence[LabeledRow], *, pad: int, max_tokens: int, seed: int = 0, per_token: bool = False
    ):
        self.rows, self.pad, self.per_token = rows, pad, per_token
        lengths = np.array([max(len(row.ids), 1) for row in rows], dtype=np.int64)
        self._plan = self._make_plan(grid(lengths, 2), max_tokens, seed)

    def _make_plan(self, lengths: Numbers, max_tokens: int, seed: int) -> BatchPlan:
        return BatchPlan(lengths, max_tokens=max_tokens, seed=seed)

    def __getitem__(self, number: int) -> LabeledBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        return make_batch(
            [self.rows[int(row)] for row in self._plan.rows_of_batch(number)], pad=self.pad, per_token=self.per_token
        )

    def padding_share(self) -> float:
        """Return the fraction of an epoch's tokens that are padding."""
        return 1 - sum(len(row.ids) for row in self.rows) / self._plan.padded_tokens()


class PairedBatches(LabeledBatches):
    """Training batches of text pairs whose two texts are encoded separately: `rows[2i]` and `rows[2i+1]` form pair i.

    A batch of B pairs has 2B sequences: the first texts of all pairs, then the second texts. It has B answers, those of
    the first texts' rows.
    """

    def _make_plan(self, lengths: Numbers, max_tokens: int, seed: int) -> BatchPlan:
        return BatchPlan(lengths[::2], lengths[1::2], max_tokens=max_tokens, seed=seed)

    def __getitem__(self, number: int) -> LabeledBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        pairs = self._plan.rows_of_batch(number)
        rows = [self.rows[2 * int(pair) + side] for side in (0, 1) for pair in pairs]
        batch = make_batch(rows, pad=self.pad)
        return batch._replace(answers=batch.answers[: len(pairs)])
