"""Several processes divide the work on many inputs; one process does all of it."""

import pytest

from glassformer.runtime.shared_work import divide_work, dividing


def square(items):
    return [item**2 for item in items]


def test_one_process_does_all_work():
    assert divide_work(range(5), square) == [0, 1, 4, 9, 16]


def test_work_is_divided_inside_the_context_only():
    parts = []

    def divide(items, work):
        parts.append(list(items))
        return work(items[:2]) + work(items[2:])

    with dividing(divide):
        assert divide_work([1, 2, 3], square) == [1, 4, 9]
    assert parts == [[1, 2, 3]]
    assert divide_work([3], square) == [9]
    assert len(parts) == 1


def test_work_inside_of_divided_work_is_done_by_the_same_process():
    calls = []

    def divide(items, work):
        calls.append(items)
        return work(items)

    with dividing(divide):
        assert divide_work([1, 2], lambda items: divide_work(items, square)) == [1, 4]
        with pytest.raises(ZeroDivisionError):
            divide_work([0], lambda items: [1 // item for item in items])
        divide_work([3], square)
    assert calls == [[1, 2], [0], [3]]
