"""Texts with something missing in batches, by step number: what is missing is a function of the seed, the epoch and
the row, so that a run that was stopped sees what one that was not would have seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching.batch_plan import BatchPlan, Numbers, grid
from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.noise import Masked, Noise, mask_tokens, random_of
from glassformer.data.batching.pair_batches import PairBatch, make_pair_batch
from glassformer.data.batching.text_rows import Rows


class MaskedBatch(NamedTuple):
    """Padded texts with hidden tokens, and what stood in their places."""

    tokens: Tensor  # (B, T)
    mask: Tensor  # (B, T), True for real tokens
    places: Tensor  # (B, P), where something is asked for; 0 where there is no more
    answers: Tensor  # (B, P), IGNORED where there is no more

    @property
    def n_target_tokens(self) -> int:
        """What the loss is averaged over: the tokens that are asked for."""
        return int((self.answers != IGNORED).sum())

    def to(self, device: torch.device | str) -> "MaskedBatch":
        """The same batch on another device."""
        return MaskedBatch(*(x.to(device, non_blocking=True) for x in self))


@dataclass(frozen=True)
class Frame:
    """What a model expects around every text, and beside it."""

    before: Sequence[int]
    after: Sequence[int]
    pad: int

    def __len__(self) -> int:
        """Tokens around a text."""
        return len(self.before) + len(self.after)


class _NoisedBatches:
    """What both kinds share: which rows come together, and what chance says of each."""

    def __init__(self, rows: Rows, first: Numbers, second: Numbers | None, *, max_tokens: int, seed: int):
        if not len(rows):
            raise ValueError("no texts are left: expected more data")
        self.rows, self.seed = rows, seed
        sides = [None if side is None else grid(side, 2) for side in (first, second)]
        assert sides[0] is not None
        self._plan = BatchPlan(sides[0], sides[1], max_tokens=max_tokens, seed=seed)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._plan)

    def epoch_of(self, step: int) -> int:
        """The epoch a step belongs to."""
        return step // len(self)

    def _drawn(self, step: int) -> list[tuple[Numbers, np.random.Generator]]:
        """The rows of a step, each with its own chance."""
        epoch = self.epoch_of(step)
        return [(self.rows[int(row)], random_of(self.seed, epoch, int(row))) for row in self._plan.rows(step)]


class MaskedBatches(_NoisedBatches):
    """Texts with some tokens hidden, as BERT learns them."""

    def __init__(
        self,
        rows: Rows,
        frame: Frame,
        *,
        share: float,
        mask: int,
        words: Numbers,
        max_tokens: int,
        seed: int = 0,
    ):
        super().__init__(rows, rows.lengths + len(frame), None, max_tokens=max_tokens, seed=seed)
        self.frame, self.share, self.mask, self.words = frame, share, mask, words

    def __getitem__(self, step: int) -> MaskedBatch:
        """The batch of this step, whatever was asked for before."""
        return make_masked_batch(
            [
                mask_tokens(ids, random, share=self.share, mask=self.mask, words=self.words)
                for ids, random in self._drawn(step)
            ],
            self.frame,
        )


def make_masked_batch(texts: Sequence[Masked], frame: Frame) -> MaskedBatch:
    """Some texts side by side, each in its frame."""
    lengths = np.array([len(text.shown) + len(frame) for text in texts])
    counts = np.array([len(text.places) for text in texts])
    width, most = int(grid(lengths.max(keepdims=True), 2)[0]), int(counts.max())
    tokens = np.full((len(texts), width), frame.pad, dtype=np.int64)
    places, answers = np.zeros((len(texts), most), dtype=np.int64), np.full((len(texts), most), IGNORED)
    for row, text in enumerate(texts):
        tokens[row, : lengths[row]] = np.concatenate((frame.before, text.shown, frame.after))
        places[row, : counts[row]] = text.places + len(frame.before)
        answers[row, : counts[row]] = text.answers
    mask = np.arange(width) < lengths[:, None]
    return MaskedBatch(*map(torch.from_numpy, (tokens, mask, places, answers)))


class DenoisingBatches(_NoisedBatches):
    """Texts with spans missing, as T5 and BART learn them; `sizes` bounds the two lengths that `noise` makes of one."""

    def __init__(
        self,
        rows: Rows,
        noise: Noise,
        sizes: Callable[[Numbers], tuple[Numbers, Numbers]],
        *,
        max_tokens: int,
        seed: int = 0,
    ):
        source, target = sizes(rows.lengths)
        super().__init__(rows, source + 1, target + 1, max_tokens=max_tokens, seed=seed)  # BEGIN or END beside each
        self.noise = noise

    def __getitem__(self, step: int) -> PairBatch:
        """The batch of this step, whatever was asked for before."""
        noised = [self.noise(ids, random) for ids, random in self._drawn(step)]
        return make_pair_batch([one.source for one in noised], [one.target for one in noised])
