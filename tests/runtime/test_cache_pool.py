"""The cache pool: rows are taken, kept, moved and resized without a number getting lost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.runtime.cache_pool import CachePool
from recording import DECODERS, PAIR, make

MODEL = make(DECODERS["rotary, grouped"])


def fill(pool, row, length, memory_length=0):
    """Give a row a text whose keys and values are numbers of its own, and return them."""
    torch.manual_seed(row.index + 100 * length)
    row.length, row.memory_length, row.tokens = length, memory_length, list(range(length))
    for block in (*pool.keys, *pool.values):
        block[row.index, :, :length].normal_()
        block[row.index, :, pool.capacity - memory_length :].normal_()
    return content(pool, row)


def content(pool, row):
    first = pool.capacity - row.memory_length
    blocks = (*pool.keys, *pool.values)
    return [torch.cat((block[row.index, :, : row.length], block[row.index, :, first:]), 1).clone() for block in blocks]


def assert_holds(pool, row, expected):
    for one, other in zip(content(pool, row), expected, strict=True):
        assert torch.equal(one, other)


def test_memory_is_allocated_once_whatever_the_capacity():
    pool = CachePool(MODEL, max_rows=4, max_tokens=80)
    size, addresses = pool.nbytes, [block.data_ptr() for block in pool.keys]
    assert (len(pool.rows), pool.capacity) == (4, 20)
    assert pool.fit(1, 35, [])
    assert (len(pool.rows), pool.capacity) == (2, 40)
    assert pool.fit(4, 20, [])
    assert (len(pool.rows), pool.capacity) == (4, 20)
    assert pool.nbytes == size
    assert [block.data_ptr() for block in pool.keys] == addresses


def test_texts_survive_a_change_of_capacity_and_moves():
    pool = CachePool(make(PAIR), max_rows=4, max_tokens=80)
    first, second, third = pool.take(3)
    pool.free(first)
    expected = {id(row): fill(pool, row, length, 3) for row, length in ((second, 9), (third, 14))}
    assert pool.fit(0, 35, [12, 17])
    assert (len(pool.rows), pool.capacity) == (2, 40)
    for row in (second, third):
        assert row.index < 2
        assert pool.rows[row.index] is row
        assert_holds(pool, row, expected[id(row)])
    assert pool.fit(2, 20, [12, 17])
    assert len(pool.rows) == 4
    for row in (second, third):
        assert_holds(pool, row, expected[id(row)])


def test_what_does_not_fit_changes_nothing():
    pool = CachePool(MODEL, max_rows=4, max_tokens=80)
    rows = pool.take(3)
    assert not pool.fit(2, 5, [5, 5, 5])
    assert not pool.fit(1, 35, [5, 5, 5])
    assert not pool.fit(1, 81, [])
    assert (len(pool.rows), pool.capacity, pool.n_busy) == (4, 20, 3)
    with pytest.raises(ValueError, match="2 rows were asked for: expected at most the 1 that are not in use"):
        pool.take(2)
    assert pool.fit(1, 20, [5, 5, 5])
    assert pool.take() == [row for row in pool.rows if row not in rows]


def test_running_rows_move_into_gaps_and_nothing_else_is_lost():
    pool = CachePool(MODEL, max_rows=4, max_tokens=40)
    gone, kept, running, other = pool.take(4)
    expected = {id(row): fill(pool, row, length) for row, length in ((kept, 6), (running, 4), (other, 3))}
    running.state = other.state = "running"
    pool.free(gone)
    pool.keep(kept)
    assert pool.compact() == 2
    assert {pool.rows[0], pool.rows[1]} == {running, other}
    for row in (kept, running, other):
        assert pool.rows[row.index] is row
        assert_holds(pool, row, expected[id(row)])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["free", "reading", "running"]), st.integers(0, 20), st.integers(0, 20))))
def test_no_text_and_no_memory_is_lost_when_rows_move(rows):
    """The longest text and the longest memory of two rows may overlap, and a memory may be there before any text."""
    rows = rows[:5]
    pool = CachePool(make(PAIR), max_rows=5, max_tokens=100)
    expected = {}
    for row, (state, length, memory_length) in zip(pool.take(len(rows)), rows, strict=True):
        if state == "free":
            pool.free(row)
            continue
        row.state = state
        expected[row] = fill(pool, row, length, min(memory_length, pool.capacity - length))
    n_running = pool.compact()
    assert [row.state == "running" for row in pool.rows] == [index < n_running for index in range(5)]
    for row, numbers in expected.items():
        assert pool.rows[row.index] is row
        assert_holds(pool, row, numbers)


def test_free_rows_are_taken_before_the_least_recently_used():
    pool = CachePool(MODEL, max_rows=3, max_tokens=30)
    one, two, three = pool.take(3)
    for row in (two, one):
        fill(pool, row, 4)
        pool.keep(row)
    pool.free(three)
    assert pool.take(3) == [three, two, one]
    assert two.tokens == []


def test_a_kept_text_leaves_one_slot_of_its_row_unused():
    pool = CachePool(MODEL, max_rows=2, max_tokens=20)
    (row,) = pool.take()
    fill(pool, row, 10)
    pool.keep(row)
    assert (row.length, row.tokens) == (9, list(range(9)))


def test_a_pool_needs_a_token_for_each_row():
    with pytest.raises(ValueError, match="max_tokens=3: expected at least max_rows=4"):
        CachePool(MODEL, max_rows=4, max_tokens=3)


def test_a_reset_pool_is_like_a_new_one():
    pool = CachePool(MODEL, max_rows=4, max_tokens=40)
    rows = pool.take(2)
    rows[0].tokens, rows[0].length = [5, 6], 2
    pool.keys[0][0] = torch.nan
    assert pool.fit(1, 13, [10, 10])
    pool.reset()
    assert [(row.index, row.state, row.length) for row in pool.rows] == [(index, "free", 0) for index in range(4)]
    assert pool.capacity == 10
    assert all(torch.isfinite(block).all() for block in (*pool.keys, *pool.values))
