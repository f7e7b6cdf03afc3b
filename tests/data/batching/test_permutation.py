"""A permutation that is computed number by number."""

import numpy as np
import pytest

from glassformer.data.batching.permutation import RandomPermutation


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000])
def test_every_number_occurs_once(size):
    order = RandomPermutation(size, key=7)
    assert sorted(order[place] for place in range(len(order))) == list(range(size))


def test_keys_give_different_orders_that_are_evenly_spread():
    size = 1000
    orders = np.array([[RandomPermutation(size, key)[place] for place in range(0, size, 50)] for key in range(300)])
    assert len(np.unique(orders, axis=0)) == 300
    counts = np.bincount(orders.reshape(-1) // 100, minlength=10)  # 600 are expected in each tenth
    assert counts.min() > 500
    assert counts.max() < 700


def test_wrong_sizes_and_places_are_refused():
    with pytest.raises(ValueError, match="size=0: expected at least 1"):
        RandomPermutation(0, key=1)
    with pytest.raises(IndexError, match="place 5: expected 0 to 4"):
        RandomPermutation(5, key=1)[5]
