"""DeBERTa's relative positions in NumPy."""

import numpy as np

from glassformer.reference.config import Config
from glassformer.reference.disentangled import RelativeTable
from glassformer.reference.parameters import Parameters

CONFIG = Config(vocab_size=1, d_model=4, n_heads=2, relative_buckets=8, relative_max_distance=20)


def make_table():
    state = {"weight": np.ones((16, 4)), "norm.weight": np.ones(4), "norm.bias": np.zeros(4)}
    return RelativeTable(Parameters(state), CONFIG)


def test_near_distances_have_a_row_each_and_far_ones_share_rows():
    table = make_table()
    assert [table.row(distance) for distance in range(-4, 5)] == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert table.row(19) == table.row(18) == 15
    assert table.row(1000) == 15
    assert table.row(-1000) == 0


def test_a_pair_reads_the_row_of_its_distance():
    _, rows = make_table().forward(np.array([[0, 1, 2]]))
    assert rows.tolist() == [[[8, 7, 6], [9, 8, 7], [10, 9, 8]]]
