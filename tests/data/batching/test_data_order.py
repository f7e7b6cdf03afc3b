"""Which rows form a batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.batching.data_order import BatchPlan, BatchShapes, count_cells, grid


@given(length=st.integers(1, 5000), step=st.sampled_from([1, 2, 4, 8]))
def test_the_grid_rounds_up_by_an_eighth_at_most(length, step):
    rounded = int(grid(np.array([length]), step)[0])
    assert length <= rounded < length + max(step, length / 8 + 1)


def test_batches_hold_every_row_once_per_epoch_within_the_budget():
    lengths = grid(np.random.default_rng(0).integers(1, 40, 200), 2)
    plan = BatchPlan(lengths, max_tokens=128, seed=0)
    epochs = [[plan.rows_of_batch(epoch * len(plan) + place) for place in range(len(plan))] for epoch in (0, 1)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(200))
        assert all(len(rows) * lengths[rows].max() <= 128 for rows in batches)
        assert sum(len(rows) * lengths[rows].max() for rows in batches) == plan.padded_tokens()
    assert np.concatenate(epochs[0]).tolist() != np.concatenate(epochs[1]).tolist()


def test_the_rows_of_a_step_depend_on_the_seed_and_the_step_only():
    lengths = grid(np.random.default_rng(0).integers(1, 40, 100), 2)
    plan, again, other = (BatchPlan(lengths, max_tokens=64, seed=seed) for seed in (3, 3, 4))
    in_order = [plan.rows_of_batch(step).tolist() for step in range(3 * len(plan))]
    assert [again.rows_of_batch(step).tolist() for step in reversed(range(3 * len(plan)))] == in_order[::-1]
    assert [other.rows_of_batch(step).tolist() for step in range(len(plan))] != in_order[: len(plan)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80), st.integers(30, 200))
def test_cuts_from_cells_are_those_of_a_loop_over_all_rows(lengths, max_tokens):
    first, second = (grid(np.array(side), 2) for side in zip(*lengths, strict=True))
    cells = count_cells(first, second)
    widths = np.repeat(np.maximum(cells.first, cells.second), cells.counts)
    cuts, widest = [0], 0
    for place, width in enumerate(widths.tolist()):
        widest = max(widest, width)
        if (place - cuts[-1] + 1) * widest > max_tokens:
            cuts.append(place)
            widest = width
    assert BatchShapes(cells, max_tokens).cuts == [*cuts, len(lengths)]
    rows = BatchPlan(first, second, max_tokens=max_tokens, seed=0)
    batches = [rows.rows_of_batch(number) for number in range(len(rows))]
    assert sum(len(some) * int(side[some].max()) for some in batches for side in (first, second)) == (
        rows.padded_tokens()
    )


def test_the_shards_of_a_corpus_have_different_orders():
    lengths = np.full(50, 4)
    plans = [BatchPlan(lengths, max_tokens=20, seed=1, shard=shard) for shard in (0, 1)]
    assert plans[0].rows_of_batch(0).tolist() != plans[1].rows_of_batch(0).tolist()
