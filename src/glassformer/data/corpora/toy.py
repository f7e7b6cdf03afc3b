"""Toy tasks with exact answers: the fastest way to see whether a Transformer learns.

Every task uses symbols 0 ... n-1. Their token ids follow the three special tokens PAD, BEGIN and END.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from glassformer.data.batching.pair_batches import PairBatch
from glassformer.text.tokenizer import BEGIN, END, PAD

N_SPECIAL = 3

PairTask = Literal["copy", "reverse", "sort"]
ANSWERS: dict[PairTask, Callable[[list[int]], list[int]]] = {
    "copy": list,
    "reverse": lambda symbols: symbols[::-1],
    "sort": sorted,
}


@dataclass(frozen=True)
class PairTaskData:
    """Endless random symbol sequences and their targets, determined by the seed."""

    task: PairTask
    n_symbols: int
    min_length: int = 3
    max_length: int = 8
    batch_size: int = 64
    seed: int = 0
    leave_out: Callable[[list[int]], bool] | None = None
    """Sequences to exclude, such as those kept for testing."""

    @property
    def vocab_size(self) -> int:
        """Return the number of symbols and special tokens."""
        return self.n_symbols + N_SPECIAL

    def batches(self) -> Iterator[PairBatch]:
        """Yield random batches."""
        random = torch.Generator().manual_seed(self.seed)
        while True:
            rows: list[list[int]] = []
            while len(rows) < self.batch_size:
                length = int(torch.randint(self.min_length, self.max_length + 1, (), generator=random))
                row = torch.randint(0, self.n_symbols, (length,), generator=random).tolist()
                if self.leave_out is None or not self.leave_out(row):
                    rows.append(row)
            yield pair_batch([(row, ANSWERS[self.task](row)) for row in rows])


def pair_batch(pairs: list[tuple[list[int], list[int]]]) -> PairBatch:
    """Return symbol sequences as a padded batch of token ids."""
    sources = [[symbol + N_SPECIAL for symbol in source] for source, _ in pairs]
    targets = [[symbol + N_SPECIAL for symbol in target] for _, target in pairs]
    return PairBatch(
        pad(sources), pad([[BEGIN, *target] for target in targets]), pad([[*target, END] for target in targets])
    )


def pad(rows: list[list[int]]) -> Tensor:
    """Pad rows on the right with PAD, (B, longest)."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def counting_rows(
    n_symbols: int, length: int, batch_size: int, *, max_step: int = 3, seed: int = 0
) -> Iterator[Tensor]:
    """Return rows (B, length) that count up from a random symbol by a random step, modulo `n_symbols`."""
    random = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(0, n_symbols, (batch_size, 1), generator=random)
        step = torch.randint(1, max_step + 1, (batch_size, 1), generator=random)
        yield (start + step * torch.arange(length)) % n_symbols + N_SPECIAL
