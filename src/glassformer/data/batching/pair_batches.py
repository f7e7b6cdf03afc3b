"""Batches by token budget: padded pairs, in a few shapes, in the order that `plan.py` gives them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching.batch_plan import BatchPlan, Numbers, grid
from glassformer.data.batching.token_files import TokenFiles
from glassformer.text.tokenizer import BEGIN, END, PAD, UNKNOWN


class PairBatch(NamedTuple):
    """Padded sources and targets; `target_in` is what precedes `target_out` at each place."""

    source: Tensor  # (B, S), ends with END
    target_in: Tensor  # (B, T), begins with BEGIN
    target_out: Tensor  # (B, T), ends with END

    @property
    def source_mask(self) -> Tensor:
        """True for real source tokens."""
        return self.source != PAD

    @property
    def target_mask(self) -> Tensor:
        """True for real target tokens."""
        return self.target_in != PAD

    @property
    def n_target_tokens(self) -> int:
        """Real target tokens, END included: what the loss is averaged over."""
        return int((self.target_out != PAD).sum())

    def to(self, device: torch.device | str) -> "PairBatch":
        """The same batch on another device."""
        return PairBatch(*(x.to(device, non_blocking=True) for x in self))


@dataclass
class TokenBudgetBatches:
    """All batches of a corpus, by step number."""

    files: TokenFiles
    max_tokens: int = 4096
    """Most padded tokens of the longer side in a batch."""
    seed: int = 0
    step: int = 2
    """Fineness of the grid of lengths: smaller pads less, larger has fewer shapes."""

    def __post_init__(self) -> None:
        # One more on each side, for END, and for BEGIN or END.
        source, target = (grid(self.files.lengths(side) + 1, self.step) for side in ("source", "target"))
        self._plan = BatchPlan(source, target, max_tokens=self.max_tokens, seed=self.seed)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._plan)

    def epoch_of(self, step: int) -> int:
        """The epoch a step belongs to."""
        return step // len(self)

    def __getitem__(self, step: int) -> PairBatch:
        """The batch of this step, whatever was asked for before."""
        return self.collate(self._plan.rows(step))

    def collate(self, rows: Numbers) -> PairBatch:
        """These sentences, padded to the grid."""
        sources = [self.files.ids("source", int(row)) for row in rows]
        targets = [self.files.ids("target", int(row)) for row in rows]
        return make_pair_batch(sources, targets, step=self.step)

    def padding_share(self) -> float:
        """How much of an epoch's source and target tokens is padding."""
        real = sum(int((self.files.lengths(side) + 1).sum()) for side in ("source", "target"))
        return 1 - real / self._plan.padded_tokens()


def make_pair_batch(
    sources: Sequence[Sequence[int] | np.ndarray], targets: Sequence[Sequence[int] | np.ndarray], *, step: int = 2
) -> PairBatch:
    """Some pairs side by side, with BEGIN and END where they belong, padded to the grid."""
    width = int(grid(np.array([max(map(len, sources)) + 1]), step)[0])
    height = int(grid(np.array([max(map(len, targets)) + 1]), step)[0])
    source = np.full((len(sources), width), PAD, dtype=np.int64)
    target_in, target_out = (np.full((len(targets), height), PAD, dtype=np.int64) for _ in range(2))
    for row, (left, right) in enumerate(zip(sources, targets, strict=True)):
        source[row, : len(left)], source[row, len(left)] = left, END
        target_in[row, 0], target_in[row, 1 : len(right) + 1] = BEGIN, right
        target_out[row, : len(right)], target_out[row, len(right)] = right, END
    return PairBatch(torch.from_numpy(source), torch.from_numpy(target_in), torch.from_numpy(target_out))


Batch_co = TypeVar("Batch_co", covariant=True)


class NumberedBatches(Protocol[Batch_co]):
    """Batches by step number, the same number of them in every epoch."""

    def __len__(self) -> int:
        """Batches in an epoch."""

    def __getitem__(self, step: int) -> Batch_co:
        """The batch of a step."""

    def padding_share(self) -> float:
        """How much of an epoch is padding."""


class CycledBatches(Generic[Batch_co]):
    """Several versions of one corpus, such as other cuts into tokens: epoch e is version e mod n.

    The versions may differ in their number of batches. Each draws the order of epoch e from its seed and e, so that no
    two epochs share an order even where all versions have one seed.
    """

    def __init__(self, versions: Sequence[NumberedBatches[Batch_co]]):
        if not versions:
            raise ValueError("there are no versions: expected at least one")
        self.versions = list(versions)
        # Where in a round through all versions each of them begins, and where the round ends.
        self._starts = list(accumulate(map(len, self.versions), initial=0))

    def __len__(self) -> int:
        """Batches in the first epoch, so that `range(len(batches))` is epoch 0. Others may have more or fewer."""
        return len(self.versions[0])

    def _find(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and the place in it."""
        rounds, place = divmod(step, self._starts[-1])
        version = bisect_right(self._starts, place) - 1
        return rounds * len(self.versions) + version, place - self._starts[version]

    def epoch_of(self, step: int) -> int:
        """The epoch a step belongs to."""
        return self._find(step)[0]

    def __getitem__(self, step: int) -> Batch_co:
        """The batch of this step, whatever was asked for before."""
        epoch, position = self._find(step)
        version = self.versions[epoch % len(self.versions)]
        return version[epoch * len(version) + position]

    def padding_share(self) -> float:
        """How much of an epoch is padding: the mean over the versions."""
        return sum(version.padding_share() for version in self.versions) / len(self.versions)


def hide_words(tokens: Tensor, chance: float) -> Tensor:
    """Each real token becomes <unk> with this chance; special ones stay."""
    if not chance:
        return tokens
    hidden = (torch.rand(tokens.shape, device=tokens.device) < chance) & (tokens > UNKNOWN)
    return tokens.masked_fill(hidden, UNKNOWN)
