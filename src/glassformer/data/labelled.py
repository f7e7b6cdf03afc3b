"""Labelled texts in batches by token budget, in the order that `plan.py` gives them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.data.plan import BatchPlan, grid


class LabelledBatch(NamedTuple):
    """Padded texts, and the number of each one's class."""

    tokens: Tensor  # (B, T)
    mask: Tensor  # (B, T), True for real tokens
    labels: Tensor  # (B,)

    @property
    def n_target_tokens(self) -> int:
        """What the loss is averaged over: texts, each of which has one answer."""
        return len(self.labels)

    def to(self, device: torch.device | str) -> "LabelledBatch":
        """The same batch on another device."""
        return LabelledBatch(*(x.to(device, non_blocking=True) for x in self))


class LabelledBatches:
    """All batches of some labelled texts, by step number."""

    def __init__(
        self, texts: Sequence[Sequence[int]], labels: Sequence[int], *, pad: int, max_tokens: int, seed: int = 0
    ):
        self.texts = [np.asarray(text, dtype=np.int32) for text in texts]
        self.labels = np.asarray(labels, dtype=np.int64)
        self.pad = pad
        lengths = np.array([max(len(text), 1) for text in texts], dtype=np.int64)
        self._plan = BatchPlan(grid(lengths, 2), max_tokens=max_tokens, seed=seed)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._plan)

    def epoch_of(self, step: int) -> int:
        """The epoch a step belongs to."""
        return step // len(self)

    def __getitem__(self, step: int) -> LabelledBatch:
        """The batch of this step, whatever was asked for before."""
        rows = self._plan.rows(step)
        texts = [self.texts[row] for row in rows]
        width = int(grid(np.array([max(1, *map(len, texts))]), 2)[0])
        tokens = np.full((len(rows), width), self.pad, dtype=np.int64)
        for place, text in enumerate(texts):
            tokens[place, : len(text)] = text
        lengths = torch.tensor([len(text) for text in texts])
        mask = torch.arange(width) < lengths[:, None]
        return LabelledBatch(torch.from_numpy(tokens), mask, torch.from_numpy(self.labels[rows]))
