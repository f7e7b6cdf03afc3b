"""Which shard a batch is from."""

import pytest

from glassformer.data.batching.shard_order import ShardOrder


def test_every_batch_of_every_shard_comes_once_per_epoch():
    sizes = [3, 1, 7, 2, 5]
    order = ShardOrder(sizes, seed=1, group=2)
    assert len(order) == 18
    epochs = [[order.find(epoch * 18 + place) for place in range(18)] for epoch in (0, 1)]
    for epoch, found in enumerate(epochs):
        wanted = [(shard, epoch * size + place) for shard, size in enumerate(sizes) for place in range(size)]
        assert sorted(found) == wanted
    assert [shard for shard, _ in epochs[0]] != [shard for shard, _ in epochs[1]]


def test_a_batch_is_a_function_of_seed_and_number():
    order, again = (ShardOrder([4, 9, 2, 6], seed=3, group=2) for _ in range(2))
    found = [order.find(number) for number in range(60)]
    assert [again.find(number) for number in reversed(range(60))] == found[::-1]
    assert [ShardOrder([4, 9, 2, 6], seed=4, group=2).find(number) for number in range(60)] != found


def test_few_shards_are_open_at_a_time():
    order = ShardOrder([10] * 12, seed=0, group=3)
    for group in range(4):
        assert len({order.find(group * 30 + place)[0] for place in range(30)}) == 3


def test_an_empty_corpus_is_refused():
    with pytest.raises(ValueError, match="the corpus is empty"):
        ShardOrder([], seed=0)
