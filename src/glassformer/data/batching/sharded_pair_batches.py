"""Training batches of sentence pairs in shards. Memory and the time to start do not grow with the corpus.

The batches of a shard are counted from its cells (`pair_shards.py`), so that no shard is opened before one of its
batches is needed. `shard_order.py` decides which shard batch number n is from.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from glassformer.data.batching.data_order import BatchPlan, BatchShapes, Numbers, grid
from glassformer.data.batching.pair_batches import PairBatch, make_pair_batch
from glassformer.data.batching.pair_shards import PairShard, read_cells
from glassformer.data.batching.shard_order import GROUP, ShardOrder
from glassformer.data.batching.token_files import SIDES


class ShardedPairBatches:
    """The training batches of sentence pairs in shards: `batches[n]` is batch number n, counted across epochs.

    Args:
        shards: The folders of the shards.
        max_tokens: Maximum number of tokens per batch, padding included, of the sources or the targets.
        seed: The seed of the order.
        step: Step of the grid to which lengths are padded.
    """

    def __init__(self, shards: Sequence[Path], *, max_tokens: int = 4096, seed: int = 0, step: int = 2):
        self.shards, self.max_tokens, self.seed, self.step = list(shards), max_tokens, seed, step
        self.n_pairs = self._n_padded = self._n_real = 0
        sizes = []
        for shard in self.shards:
            cells = read_cells(shard)
            shapes = BatchShapes(cells.rounded(step), max_tokens)
            sizes.append(len(shapes))
            self.n_pairs += cells.n_pairs
            self._n_padded += shapes.padded_tokens()
            self._n_real += cells.n_tokens
        self._order = ShardOrder(sizes, seed=seed)
        self._opened = lru_cache(maxsize=GROUP)(self._open_shard)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self._order)

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the batch with this number."""
        return number // len(self)

    def n_rows(self, number: int) -> int:
        """Return the number of pairs in the batch with this number."""
        return len(self._find(number)[1])

    def __getitem__(self, number: int) -> PairBatch:
        """Return the batch with this number. It depends on the seed and the number only."""
        shard, rows = self._find(number)
        sources, targets = ([shard.ids(side, int(row)) for row in rows] for side in SIDES)
        return make_pair_batch(sources, targets, step=self.step)

    def padding_share(self) -> float:
        """Return the fraction of an epoch's source and target tokens that are padding."""
        return 1 - self._n_real / self._n_padded

    def _find(self, number: int) -> tuple[PairShard, Numbers]:
        place, inside = self._order.find(number)
        shard, plan = self._opened(place)
        return shard, plan.rows_of_batch(inside)

    def _open_shard(self, place: int) -> tuple[PairShard, BatchPlan]:
        shard = PairShard(self.shards[place])
        source, target = (grid(shard.lengths(side) + 1, self.step) for side in SIDES)
        return shard, BatchPlan(source, target, max_tokens=self.max_tokens, seed=self.seed, shard=place)
