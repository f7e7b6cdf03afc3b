"""Training batches of several corpora with weights: `--mix news=0.7,web=0.3`.

Every block of `BLOCK` batches has the same number of batches of each corpus, by its weight, in an order drawn from the
seed and the number of the block. So batch n is a function of the seed and n, and a corpus of any size has its share of
the updates: a small one is repeated more often.
"""

from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np

from glassformer.data.batching.data_order import Numbers
from glassformer.data.batching.pair_batches import NumberedBatches

Batch_co = TypeVar("Batch_co", covariant=True)
BLOCK = 1000
"""Number of batches after which the shares are exact, to a tenth of a percent."""


class MixedBatches(Generic[Batch_co]):
    """The training batches of several corpora, by name, mixed by `weights`.

    Weights may have any sum. An epoch has as many batches as one epoch of each corpus together.
    """

    def __init__(self, corpora: Mapping[str, NumberedBatches[Batch_co]], weights: Mapping[str, float], *, seed: int):
        if corpora.keys() != weights.keys():
            raise ValueError(f"weights for {', '.join(weights)}: expected one for each of {', '.join(corpora)}")
        self.corpora, self._seed = list(corpora.values()), seed
        self._counts = share_out([weights[name] for name in corpora], BLOCK)
        """Number of batches of each corpus in a block."""
        self._block: tuple[int, Numbers, Numbers] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return sum(map(len, self.corpora))

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the batch with this number."""
        return number // len(self)

    def __getitem__(self, number: int) -> Batch_co:
        """Return the batch with this number. It depends on the seed and the number only."""
        corpus, inside = self.find(number)
        return self.corpora[corpus][inside]

    def n_rows(self, number: int) -> int:
        """Return the number of examples in the batch with this number."""
        corpus, inside = self.find(number)
        return self.corpora[corpus].n_rows(inside)

    def padding_share(self) -> float:
        """Return the fraction of tokens that are padding, by the weights."""
        shares = [count * one.padding_share() for count, one in zip(self._counts, self.corpora, strict=True)]
        return sum(shares) / BLOCK

    def find(self, number: int) -> tuple[int, int]:
        """Return the index of a batch's corpus, and the number of the batch among those of the corpus."""
        block, place = divmod(number, BLOCK)
        if self._block is None or self._block[0] != block:
            corpora = np.repeat(np.arange(len(self._counts)), self._counts)
            order = np.random.default_rng([self._seed, block]).permutation(corpora)
            # How many batches of the same corpus are before each place.
            before = np.zeros(BLOCK, dtype=np.int64)
            for corpus in range(len(self._counts)):
                before[order == corpus] = np.arange(self._counts[corpus])
            self._block = block, order, before
        _, order, before = self._block
        corpus = int(order[place])
        return corpus, block * self._counts[corpus] + int(before[place])


def share_out(weights: list[float], total: int) -> list[int]:
    """Return whole numbers in the ratio of `weights` whose sum is `total`, by the largest remainders; at least 1 each.

    >>> share_out([0.7, 0.2, 0.1], 10)
    [7, 2, 1]
    """
    exact = np.asarray(weights) / sum(weights) * total
    found = np.maximum(1, np.floor(exact).astype(np.int64))
    while found.sum() != total:
        change = 1 if found.sum() < total else -1
        remainders = np.where(found + change >= 1, change * (exact - found), -np.inf)
        found[int(np.argmax(remainders))] += change
    return [int(number) for number in found]
