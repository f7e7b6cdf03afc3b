"""Toy tasks with exact answers: the fastest way to see whether a Transformer learns.

Every task uses the symbols 0 to n-1. The token id of symbol s is s + 3, after the special tokens PAD, BEGIN and END.
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
    """Endless random sequences of symbols, each with a target: the same symbols copied, reversed or sorted.

    `task` is "copy", "reverse" or "sort". The seed determines the sequences.
    """

    task: PairTask
    n_symbols: int
    min_length: int = 3
    max_length: int = 8
    batch_size: int = 64
    seed: int = 0
    leave_out: Callable[[list[int]], bool] | None = None
    """Returns True for a sequence to exclude, such as one kept for testing."""

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids: symbols and special tokens."""
        return self.n_symbols + N_SPECIAL

    def batches(self) -> Iterator[PairBatch]:
        """Yield batches of `batch_size` random sequences and their targets, without end."""
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
    """Return (source, target) pairs of symbol sequences as a padded batch of token ids."""
    sources = [[symbol + N_SPECIAL for symbol in source] for source, _ in pairs]
    targets = [[symbol + N_SPECIAL for symbol in target] for _, target in pairs]
    return PairBatch(
        pad(sources), pad([[BEGIN, *target] for target in targets]), pad([[*target, END] for target in targets])
    )


def pad(rows: list[list[int]]) -> Tensor:
    """Return B rows of token ids as a tensor (B, longest), padded on the right with PAD."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def counting_rows(
    n_symbols: int, length: int, batch_size: int, *, max_step: int = 3, seed: int = 0
) -> Iterator[Tensor]:
    """Yield batches (B, length) of token ids without end. Each row counts up from a random symbol, modulo `n_symbols`.

    A row's step is random, from 1 to `max_step`. B is `batch_size`.
    """
    random = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(0, n_symbols, (batch_size, 1), generator=random)
        step = torch.randint(1, max_step + 1, (batch_size, 1), generator=random)
        yield (start + step * torch.arange(length)) % n_symbols + N_SPECIAL
