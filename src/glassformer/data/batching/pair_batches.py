"""Padded batches of sentence pairs with a limited number of tokens each, in the order of `data_order.py`."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching.data_order import BatchPlan, Numbers, PlannedBatches, grid
from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.token_files import TokenFiles
from glassformer.text.tokenizer import BEGIN, END, PAD, UNKNOWN


class PairBatch(NamedTuple):
    """A padded batch of sources and targets.

    For each target, `target_in` is BEGIN and its tokens, and `target_out`, which the model predicts, is its tokens and
    END.
    """

    source: Tensor  # (B, S), ends with END
    target_in: Tensor  # (B, T), begins with BEGIN
    target_out: Tensor  # (B, T), ends with END

    @property
    def ignored(self) -> int:
        """Return the id in `target_out` that is no target, PAD."""
        return PAD

    @property
    def source_mask(self) -> Tensor:
        """Return a mask (B, S), True for source tokens that are not padding."""
        return self.source != PAD

    @property
    def target_mask(self) -> Tensor:
        """Return a mask (B, T), True for tokens of `target_in` that are not padding."""
        return self.target_in != PAD

    @property
    def n_target_tokens(self) -> int:
        """Return the number of target tokens, with END and without padding, over which the loss is averaged."""
        return int((self.target_out != PAD).sum())

    def slice_rows(self, begin: int, end: int) -> "PairBatch":
        """Return the pairs from `begin` up to, but not including, `end`, with unchanged padding."""
        return PairBatch(*(x[begin:end] for x in self))

    def to(self, device: torch.device | str) -> "PairBatch":
        """Return the batch on `device`."""
        return PairBatch(*(x.to(device, non_blocking=True) for x in self))


class MarkedPairBatch(NamedTuple):
    """A padded batch of sources and targets of a pretrained model, whose ids of padding and of the start may be any.

    For each target, `target_in` is the start token and the target without its last token. `target_out` is the target.
    """

    source: Tensor  # (B, S)
    target_in: Tensor  # (B, T)
    target_out: Tensor  # (B, T), IGNORED for padding
    source_mask: Tensor  # (B, S), True for source tokens that are not padding

    @property
    def ignored(self) -> int:
        """Return the id in `target_out` that is no target, IGNORED."""
        return IGNORED

    @property
    def target_mask(self) -> Tensor:
        """Return a mask (B, T), True for tokens of `target_in` that are not padding."""
        return self.target_out != IGNORED

    @property
    def n_target_tokens(self) -> int:
        """Return the number of target tokens, with special tokens and without padding."""
        return int((self.target_out != IGNORED).sum())

    def slice_rows(self, begin: int, end: int) -> "MarkedPairBatch":
        """Return the pairs from `begin` up to, but not including, `end`, with unchanged padding."""
        return MarkedPairBatch(*(x[begin:end] for x in self))

    def to(self, device: torch.device | str) -> "MarkedPairBatch":
        """Return the batch on `device`."""
        return MarkedPairBatch(*(x.to(device, non_blocking=True) for x in self))


class PairMarks(NamedTuple):
    """Ids of a pretrained encoder-decoder: padding, and the token with which the decoder starts."""

    pad: int
    begin: int


AnyPairBatch = PairBatch | MarkedPairBatch


@dataclass
class TokenBudgetBatches(PlannedBatches):
    """The training batches of tokenized sentence pairs: `batches[n]` is batch number n, counted across epochs."""

    files: TokenFiles
    max_tokens: int = 4096
    """Maximum number of tokens per batch, padding included, of the sources or the targets, whichever has more."""
    seed: int = 0
    step: int = 2
    """Step of the grid to which lengths are padded. A smaller step pads less, a larger one gives fewer shapes."""
    marks: PairMarks | None = None
    """Special ids of a pretrained model, whose files hold all special tokens already. None adds BEGIN and END."""

    def __post_init__(self) -> None:
        # One more token on each side: END for the source, BEGIN or END for the target.
        self._added = int(self.marks is None)
        source, target = (grid(self.files.lengths(side) + self._added, self.step) for side in ("source", "target"))
        self._plan = BatchPlan(source, target, max_tokens=self.max_tokens, seed=self.seed)

    def __getitem__(self, number: int) -> AnyPairBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        return self.collate(self._plan.rows_of_batch(number))

    def collate(self, rows: Numbers) -> AnyPairBatch:
        """Return the sentence pairs with these indices as a batch, padded to rounded lengths (`make_pair_batch`)."""
        sources = [self.files.ids("source", int(row)) for row in rows]
        targets = [self.files.ids("target", int(row)) for row in rows]
        if self.marks is not None:
            return make_marked_batch(sources, targets, self.marks, step=self.step)
        return make_pair_batch(sources, targets, step=self.step)

    def padding_share(self) -> float:
        """Return the fraction of an epoch's source and target tokens that are padding."""
        real = sum(int((self.files.lengths(side) + self._added).sum()) for side in ("source", "target"))
        return 1 - real / self._plan.padded_tokens()


def make_pair_batch(
    sources: Sequence[Sequence[int] | np.ndarray], targets: Sequence[Sequence[int] | np.ndarray], *, step: int = 2
) -> PairBatch:
    """Return tokenized sentence pairs, given without BEGIN and END, as a padded batch.

    BEGIN and END are added. The longest source and the longest target, rounded up by `grid` with this `step`, decide
    the padded lengths.
    """
    width = int(grid(np.array([max(map(len, sources)) + 1]), step)[0])
    height = int(grid(np.array([max(map(len, targets)) + 1]), step)[0])
    source = np.full((len(sources), width), PAD, dtype=np.int64)
    target_in, target_out = (np.full((len(targets), height), PAD, dtype=np.int64) for _ in range(2))
    for row, (left, right) in enumerate(zip(sources, targets, strict=True)):
        source[row, : len(left)], source[row, len(left)] = left, END
        target_in[row, 0], target_in[row, 1 : len(right) + 1] = BEGIN, right
        target_out[row, : len(right)], target_out[row, len(right)] = right, END
    return PairBatch(torch.from_numpy(source), torch.from_numpy(target_in), torch.from_numpy(target_out))


def make_marked_batch(
    sources: Sequence[Sequence[int] | np.ndarray],
    targets: Sequence[Sequence[int] | np.ndarray],
    marks: PairMarks,
    *,
    step: int = 2,
) -> MarkedPairBatch:
    """Return tokenized sentence pairs of a pretrained model, given with their special tokens, as a padded batch."""
    width, height = (int(grid(np.array([max(map(len, rows))]), step)[0]) for rows in (sources, targets))
    source = np.full((len(sources), width), marks.pad, dtype=np.int64)
    target_in = np.full((len(targets), height), marks.pad, dtype=np.int64)
    target_out = np.full((len(targets), height), IGNORED, dtype=np.int64)
    mask = np.zeros((len(sources), width), dtype=bool)
    for row, (left, right) in enumerate(zip(sources, targets, strict=True)):
        source[row, : len(left)], mask[row, : len(left)] = left, True
        target_in[row, 0], target_in[row, 1 : len(right)] = marks.begin, right[:-1]
        target_out[row, : len(right)] = right
    return MarkedPairBatch(*map(torch.from_numpy, (source, target_in, target_out, mask)))


Batch_co = TypeVar("Batch_co", covariant=True)


class NumberedBatches(Protocol[Batch_co]):
    """Protocol of training batches: `batches[n]` is batch number n, counted across epochs (`data_order.py`).

    Every epoch has the same number of batches.
    """

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def __getitem__(self, number: int) -> Batch_co:
        """Return the batch with this number."""

    def n_rows(self, number: int) -> int:
        """Return the number of examples in the batch with this number."""

    def padding_share(self) -> float:
        """Return the fraction of an epoch's tokens that are padding."""


class CycledBatches(Generic[Batch_co]):
    """The training batches of n versions of a corpus, such as BPE segmentations. Epoch e uses version e mod n.

    Versions may have different numbers of batches. A version draws the order of epoch e from its seed and e, so that
    the order differs between epochs even if all versions have the same seed.
    """

    def __init__(self, versions: Sequence[NumberedBatches[Batch_co]]):
        if not versions:
            raise ValueError("there are no versions: expected at least one")
        self.versions = list(versions)
        # Number of the first batch of each version in the first n epochs, and the number of batches in these epochs.
        self._starts = list(accumulate(map(len, self.versions), initial=0))

    def __len__(self) -> int:
        """Return the number of batches in epoch 0. Other epochs may have more or fewer."""
        return len(self.versions[0])

    def _find(self, number: int) -> tuple[int, int]:
        """Return the epoch of the batch with this number, and its position in that epoch."""
        rounds, place = divmod(number, self._starts[-1])
        version = bisect_right(self._starts, place) - 1
        return rounds * len(self.versions) + version, place - self._starts[version]

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the batch with this number."""
        return self._find(number)[0]

    def __getitem__(self, number: int) -> Batch_co:
        """Return the batch with this number. It depends on the seed and the number only."""
        version, inside = self._locate(number)
        return version[inside]

    def n_rows(self, number: int) -> int:
        """Return the number of examples in the batch with this number."""
        version, inside = self._locate(number)
        return version.n_rows(inside)

    def _locate(self, number: int) -> tuple[NumberedBatches[Batch_co], int]:
        """Return the version of the corpus that a batch is from, and the batch's number among those of the version."""
        epoch, position = self._find(number)
        version = self.versions[epoch % len(self.versions)]
        return version, epoch * len(version) + position

    def padding_share(self) -> float:
        """Return the fraction of tokens that are padding, averaged over the versions of the corpus."""
        return sum(version.padding_share() for version in self.versions) / len(self.versions)


def hide_words(tokens: Tensor, chance: float) -> Tensor:
    """Return the tokens with each one replaced by <unk> with probability `chance` (word dropout).

    PAD, BEGIN and END stay.
    """
    if not chance:
        return tokens
    hidden = (torch.rand(tokens.shape, device=tokens.device) < chance) & (tokens > UNKNOWN)
    return tokens.masked_fill(hidden, UNKNOWN)
