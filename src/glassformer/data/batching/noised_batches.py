"""Training batches of corrupted texts, for masked language models (BERT) and denoising models (T5, BART).

The corruption of a text depends on the seed, the epoch and the text's index only, so that a resumed run sees the same
data as an uninterrupted one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching.data_order import BatchPlan, Numbers, PlannedBatches, grid
from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.noise import Masked, Noise, mask_tokens, random_of
from glassformer.data.batching.pair_batches import PairBatch, make_pair_batch
from glassformer.data.batching.text_rows import Rows


class MaskedBatch(NamedTuple):
    """A padded batch of masked texts, with the positions to predict and the original tokens there."""

    tokens: Tensor  # (B, T)
    mask: Tensor  # (B, T), True for real tokens
    places: Tensor  # (B, P), positions to predict, padded with 0
    answers: Tensor  # (B, P), padded with IGNORED

    @property
    def n_target_tokens(self) -> int:
        """Return the number of tokens to predict, over which the loss is averaged."""
        return int((self.answers != IGNORED).sum())

    def slice_rows(self, begin: int, end: int) -> "MaskedBatch":
        """Return the texts from `begin` up to, but not including, `end`, with unchanged padding."""
        return MaskedBatch(*(x[begin:end] for x in self))

    def to(self, device: torch.device | str) -> "MaskedBatch":
        """Return the batch on `device`."""
        return MaskedBatch(*(x.to(device, non_blocking=True) for x in self))


@dataclass(frozen=True)
class SurroundingTokens:
    """The ids of the special tokens that a model expects before and after every text, and of padding."""

    before: Sequence[int]
    after: Sequence[int]
    pad: int

    def __len__(self) -> int:
        """Return the number of tokens around a text."""
        return len(self.before) + len(self.after)


class _NoisedBatches(PlannedBatches):
    """Base class of MaskedBatches and DenoisingBatches: decides which rows (tokenized texts) form a batch.

    `first` holds the number of source tokens of each row after its corruption, `second` that of target tokens, or None
    if there is no separate target.
    """

    def __init__(self, rows: Rows, first: Numbers, second: Numbers | None, *, max_tokens: int, seed: int):
        if not len(rows):
            raise ValueError("no texts are left: expected more data")
        self.rows, self.seed = rows, seed
        sides = [None if side is None else grid(side, 2) for side in (first, second)]
        assert sides[0] is not None
        self._plan = BatchPlan(sides[0], sides[1], max_tokens=max_tokens, seed=seed)

    def _drawn(self, number: int) -> list[tuple[Numbers, np.random.Generator]]:
        """Return the token ids of each row of a batch, with the random generator that decides the row's corruption."""
        epoch = self.epoch_of(number)
        return [
            (self.rows[int(row)], random_of(self.seed, epoch, int(row))) for row in self._plan.rows_of_batch(number)
        ]


class MaskedBatches(_NoisedBatches):
    """Training batches for masked language modeling (BERT): `batches[n]` is batch number n, counted across epochs.

    `share`, `mask` and `words` are arguments of `mask_tokens`. `max_tokens` limits the padded tokens of a batch.
    """

    def __init__(
        self,
        rows: Rows,
        surrounding: SurroundingTokens,
        *,
        share: float,
        mask: int,
        words: Numbers,
        max_tokens: int,
        seed: int = 0,
    ):
        super().__init__(rows, rows.lengths + len(surrounding), None, max_tokens=max_tokens, seed=seed)
        self.surrounding, self.share, self.mask, self.words = surrounding, share, mask, words

    def __getitem__(self, number: int) -> MaskedBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        return make_masked_batch(
            [
                mask_tokens(ids, random, share=self.share, mask=self.mask, words=self.words)
                for ids, random in self._drawn(number)
            ],
            self.surrounding,
        )


def make_masked_batch(texts: Sequence[Masked], surrounding: SurroundingTokens) -> MaskedBatch:
    """Return masked texts as a padded batch, with the surrounding tokens around each text."""
    lengths = np.array([len(text.shown) + len(surrounding) for text in texts])
    counts = np.array([len(text.places) for text in texts])
    width, most = int(grid(lengths.max(keepdims=True), 2)[0]), int(counts.max())
    tokens = np.full((len(texts), width), surrounding.pad, dtype=np.int64)
    places, answers = np.zeros((len(texts), most), dtype=np.int64), np.full((len(texts), most), IGNORED)
    for row, text in enumerate(texts):
        tokens[row, : lengths[row]] = np.concatenate((surrounding.before, text.shown, surrounding.after))
        places[row, : counts[row]] = text.places + len(surrounding.before)
        answers[row, : counts[row]] = text.answers
    mask = np.arange(width) < lengths[:, None]
    return MaskedBatch(*map(torch.from_numpy, (tokens, mask, places, answers)))


class DenoisingBatches(_NoisedBatches):
    """Training batches for denoising models (T5, BART): `batches[n]` is batch number n, counted across epochs.

    `noise` corrupts a text. `sizes` takes the lengths of the texts, and returns upper bounds of their source lengths
    and of their target lengths after corruption. `max_tokens` limits the padded tokens of a batch on its longer side.
    """

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
        super().__init__(rows, source + 1, target + 1, max_tokens=max_tokens, seed=seed)  # one more for BEGIN or END
        self.noise = noise

    def __getitem__(self, number: int) -> PairBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        noised = [self.noise(ids, random) for ids, random in self._drawn(number)]
        return make_pair_batch([one.source for one in noised], [one.target for one in noised])
