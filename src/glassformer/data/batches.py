"""Batches by token budget, in a few shapes, in an order that is a pure function of (seed, epoch, position).

Sentences are put into cells by their two lengths, rounded up to a grid. Cells are laid end to end in a snake, so that
neighbours are alike, and cut into batches whose padded size stays within the budget. Which sentence of a cell falls
into which batch, and in which order the batches come, is drawn anew for each epoch; how many batches there are, and
their shapes, is not. So step n is batch n mod (batches an epoch) of epoch n div (batches an epoch), and seeking costs
nothing.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.data.token_files import TokenFiles
from glassformer.text.tokenizer import BEGIN, END, PAD

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


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


def grid(lengths: Numbers, step: int) -> Numbers:
    """Lengths rounded up to a grid of `step` that grows coarser by eighths: 2, 4, ... 16, 18, 20, ... 32, 36, ... ."""
    fine = np.maximum(step, 2.0 ** np.floor(np.log2(np.maximum(lengths, 1)) - 3)).astype(np.int64)
    return -(-lengths // fine) * fine


@dataclass
class TokenBudgetBatches:
    """All batches of a corpus, by step number."""

    files: TokenFiles
    max_tokens: int = 4096
    """Most padded tokens of the longer side in a batch."""
    seed: int = 0
    step: int = 2
    """Fineness of the grid of lengths: smaller pads less, larger has fewer shapes."""
    _plan: tuple[int, list[Numbers]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not len(self.files):
            raise ValueError("the corpus is empty: expected at least one pair")
        # One more on each side, for END, and for BEGIN or END.
        source, target = (grid(self.files.lengths(side) + 1, self.step) for side in ("source", "target"))
        longest = int(np.maximum(source, target).max())
        if longest > self.max_tokens:
            raise ValueError(
                f"max_tokens={self.max_tokens}: expected at least {longest}, for the longest sentence alone"
            )
        # The snake: source lengths rise within even target lengths and fall within odd ones.
        rank = np.unique(target, return_inverse=True)[1]
        snake = np.where(rank % 2 == 0, source, -source)
        self._cells = np.unique(np.stack((target, snake), 1), axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(self._cells, kind="stable")
        self._shapes = source[order], target[order]  # the same for every epoch: cells are uniform
        self._cuts = self._cut(*self._shapes)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._cuts) - 1

    def _cut(self, source: Numbers, target: Numbers) -> list[int]:
        cuts, widest = [0], 0
        for place, width in enumerate(np.maximum(source, target).tolist()):
            widest = max(widest, width)
            if (place - cuts[-1] + 1) * widest > self.max_tokens:
                cuts.append(place)
                widest = width
        return [*cuts, len(source)]

    def epoch_of(self, step: int) -> int:
        """The epoch a step belongs to."""
        return step // len(self)

    def __getitem__(self, step: int) -> PairBatch:
        """The batch of this step, whatever was asked for before."""
        epoch, position = divmod(step, len(self))
        if self._plan is None or self._plan[0] != epoch:
            self._plan = epoch, self._draw(epoch)
        return self.collate(self._plan[1][position])

    def _draw(self, epoch: int) -> list[Numbers]:
        random = np.random.default_rng([self.seed, epoch])
        order = np.lexsort((random.random(len(self._cells)), self._cells))
        parts = [order[begin:end] for begin, end in zip(self._cuts, self._cuts[1:], strict=False)]
        return [parts[place] for place in random.permutation(len(parts))]

    def collate(self, rows: Numbers) -> PairBatch:
        """These sentences, padded to the grid."""
        sources = [self.files.ids("source", int(row)) for row in rows]
        targets = [self.files.ids("target", int(row)) for row in rows]
        width = int(grid(np.array([max(map(len, sources)) + 1]), self.step)[0])
        height = int(grid(np.array([max(map(len, targets)) + 1]), self.step)[0])
        source = np.full((len(rows), width), PAD, dtype=np.int64)
        target_in, target_out = (np.full((len(rows), height), PAD, dtype=np.int64) for _ in range(2))
        for row, (left, right) in enumerate(zip(sources, targets, strict=True)):
            source[row, : len(left)], source[row, len(left)] = left, END
            target_in[row, 0], target_in[row, 1 : len(right) + 1] = BEGIN, right
            target_out[row, : len(right)], target_out[row, len(right)] = right, END
        return PairBatch(torch.from_numpy(source), torch.from_numpy(target_in), torch.from_numpy(target_out))

    def padding_share(self) -> float:
        """How much of an epoch's source and target tokens is padding."""
        real = padded = 0
        for begin, end in zip(self._cuts, self._cuts[1:], strict=False):
            for shapes in self._shapes:
                padded += (end - begin) * int(shapes[begin:end].max())
        real = sum(int((self.files.lengths(side) + 1).sum()) for side in ("source", "target"))
        return 1 - real / padded


class CycledBatches:
    """Several versions of one corpus, such as other cuts into tokens: epoch e is version e mod n.

    The versions may differ in their number of batches. Each draws the order of epoch e from its seed and e, so that no
    two epochs share an order even where all versions have one seed.
    """

    def __init__(self, versions: Sequence[TokenBudgetBatches]):
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

    def __getitem__(self, step: int) -> PairBatch:
        """The batch of this step, whatever was asked for before."""
        epoch, position = self._find(step)
        version = self.versions[epoch % len(self.versions)]
        return version[epoch * len(version) + position]

    def padding_share(self) -> float:
        """How much of an epoch's source and target tokens is padding: the mean over the versions."""
        return sum(version.padding_share() for version in self.versions) / len(self.versions)
