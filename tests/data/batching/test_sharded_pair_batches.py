"""Batches of pairs in shards."""

import numpy as np
import pytest
import torch

from glassformer.data.batching.pair_shards import write_pair_shards
from glassformer.data.batching.sharded_pair_batches import ShardedPairBatches
from glassformer.data.readers.pairs import Pair


def encode(texts):
    return [[10 + int(word) for word in text.split()] for text in texts]


@pytest.fixture
def pairs():
    random = np.random.default_rng(0)
    return [Pair(f"{n}" + " 1" * random.integers(20), f"{n}" + " 2" * random.integers(20)) for n in range(300)]


@pytest.fixture
def shards(tmp_path, pairs):
    return write_pair_shards(tmp_path / "shards", pairs, encode, encode, max_len=100, shard_rows=70)[0]


def test_every_pair_comes_once_per_epoch_within_the_budget(shards):
    batches = ShardedPairBatches(shards, max_tokens=120, seed=1)
    assert batches.n_pairs == 300
    for epoch in (0, 1):
        numbers = range(epoch * len(batches), (epoch + 1) * len(batches))
        found = [batches[number] for number in numbers]
        assert sorted(row[0].item() - 10 for batch in found for row in batch.source) == list(range(300))
        assert all(max(batch.source.numel(), batch.target_in.numel()) <= 120 for batch in found)
        assert [batches.n_rows(number) for number in numbers] == [len(batch.source) for batch in found]
        assert {batches.epoch_of(number) for number in numbers} == {epoch}
    padded = sum(batch.source.numel() + batch.target_in.numel() for batch in found)
    real = sum(int(batch.source_mask.sum() + batch.target_mask.sum()) for batch in found)
    assert batches.padding_share() == pytest.approx(1 - real / padded)


def test_a_batch_is_a_function_of_seed_and_number(shards):
    one, two = (ShardedPairBatches(shards, max_tokens=120, seed=5) for _ in range(2))
    found = [one[number] for number in range(2 * len(one))]
    for number in (len(found) - 1, 3, 0, len(one)):
        assert all(torch.equal(a, b) for a, b in zip(found[number], two[number], strict=True))
