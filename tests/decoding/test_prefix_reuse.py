"""Prefix reuse: which row of the pool a prompt continues."""

from glassformer.decoding.prefix_reuse import count_shared, find_longest_prefix, take_rows
from glassformer.runtime.cache_pool import CachePool
from recording import DECODERS, make

MODEL = make(DECODERS["alibi"])


def pool_with(*texts, max_rows=4):
    pool = CachePool(MODEL, max_rows=max_rows, max_tokens=20 * max_rows)
    rows = pool.take(len(texts))
    for row, text in zip(rows, texts, strict=True):
        row.tokens, row.length = list(text), len(text)
        pool.keep(row)
    return pool, rows


def test_the_number_of_shared_tokens():
    assert count_shared([1, 2, 3], [1, 2, 4]) == 2
    assert count_shared([1, 2], [1, 2, 4]) == 2
    assert count_shared([], [1]) == 0
    assert count_shared([2], [1]) == 0


def test_the_row_with_the_longest_shared_beginning_is_found():
    pool, rows = pool_with([1, 2], [1, 2, 3, 4], [1, 9])
    assert find_longest_prefix(pool, [1, 2, 3, 8], 2) == (rows[1], 3)
    assert find_longest_prefix(pool, [1, 7], 2) == (None, 0)
    # The last token of a prompt is always read.
    assert find_longest_prefix(pool, [1, 2, 3, 4], 1) == (rows[1], 3)


def test_a_text_that_goes_on_is_continued_in_its_row():
    pool, rows = pool_with([1, 2, 3])
    taken, n_shared = take_rows(pool, [1, 2, 3, 4], 2, 1)
    assert (taken[0], n_shared) == (rows[0], 3)
    assert [row.state for row in taken] == ["reading", "reading"]


def test_a_shared_beginning_is_copied_and_the_other_text_stays():
    pool, rows = pool_with([1, 2, 3, 4])
    pool.keys[0][0, :, :4] = 7.0
    taken, n_shared = take_rows(pool, [1, 2, 5], 1, 1)
    assert n_shared == 2
    assert taken[0] is not rows[0]
    assert taken[0].tokens == [1, 2]
    assert rows[0].tokens == [1, 2, 3, 4]
    assert (pool.keys[0][taken[0].index, :, :2] == 7.0).all()


def test_without_another_row_the_other_text_gives_way():
    pool, rows = pool_with([1, 2, 3, 4], max_rows=1)
    taken, n_shared = take_rows(pool, [1, 2, 5], 1, 1)
    assert (taken, n_shared, rows[0].length) == (rows, 2, 2)


def test_the_beginning_of_a_running_text_is_copied():
    pool, rows = pool_with([1, 2, 3])
    rows[0].state = "running"
    taken, n_shared = take_rows(pool, [1, 2, 3, 4], 1, 1)
    assert n_shared == 3
    assert taken[0] is not rows[0]
    assert rows[0].state == "running"


def test_zero_turns_reuse_off():
    pool, _ = pool_with([1, 2, 3])
    assert take_rows(pool, [1, 2, 3, 4], 1, 0)[1] == 0
