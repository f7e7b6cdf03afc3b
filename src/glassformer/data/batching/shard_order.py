"""The data order of a corpus in shards: which shard, and which of its batches, is batch number n.

A shard is a part of the corpus of limited size with an order of its own (`data_order.py`). An epoch draws an order of
the shards and takes them in groups of `GROUP`; the batches of a group are shuffled together. Only the shards of one
group are open at a time, so that memory does not grow with the corpus, and nothing but the number of batches of each
shard must be known to find a batch. Everything depends on the seed and the number only.
"""

from collections.abc import Sequence

import numpy as np

from glassformer.data.batching.data_order import Numbers

GROUP = 8
"""Number of shards whose batches are shuffled together."""


class ShardOrder:
    """Finds the shard of a batch.

    Args:
        sizes: The number of batches in each shard.
        seed: The seed of the order.
        group: The number of shards whose batches are shuffled together.
    """

    def __init__(self, sizes: Sequence[int], *, seed: int, group: int = GROUP):
        if not sum(sizes):
            raise ValueError("the corpus is empty: expected at least one example")
        self._sizes, self._seed, self._group = np.asarray(sizes, dtype=np.int64), seed, group
        self._n_batches = int(self._sizes.sum())
        self._epoch: tuple[int, Numbers, Numbers] | None = None
        self._shuffled: tuple[int, int, Numbers, Numbers] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._n_batches

    def find(self, number: int) -> tuple[int, int]:
        """Return the shard of the batch with this number, and the batch's number in the shard, across epochs."""
        epoch, position = divmod(number, self._n_batches)
        if self._epoch is None or self._epoch[0] != epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self._sizes))
            starts = np.add.reduceat(self._sizes[order], np.arange(0, len(order), self._group))
            self._epoch = epoch, order, np.concatenate(([0], np.cumsum(starts)))
        _, order, starts = self._epoch
        group = int(np.searchsorted(starts, position, side="right")) - 1
        if self._shuffled is None or self._shuffled[:2] != (epoch, group):
            shards = order[group * self._group : (group + 1) * self._group]
            random = np.random.default_rng([self._seed, epoch, group + 1])
            places = random.permutation(int(starts[group + 1] - starts[group]))
            self._shuffled = epoch, group, shards, places
        _, _, shards, places = self._shuffled
        ends = np.cumsum(self._sizes[shards])
        place = int(places[position - int(starts[group])])
        one = int(np.searchsorted(ends, place, side="right"))
        shard, size = int(shards[one]), int(self._sizes[shards[one]])
        return shard, epoch * size + place - (int(ends[one]) - size)
