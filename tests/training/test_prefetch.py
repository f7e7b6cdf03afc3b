"""Batches that are prepared in the background are those that were asked for."""

import threading

import pytest
import torch

from glassformer.training.prefetch import Prefetcher, pinned, prefetching


def test_batches_are_those_of_their_numbers_and_made_by_one_thread():
    threads = set()

    def make(number):
        threads.add(threading.current_thread().name)
        return 10 * number

    prefetcher = Prefetcher(make, pin=False)
    assert prefetcher.get([0, 1]) == [0, 10]
    assert prefetcher.get([2, 3]) == [20, 30]
    assert prefetcher.get([7]) == [70]  # not those that were prepared
    assert prefetcher.get([8, 9, 10]) == [80, 90, 100]
    prefetcher.close()
    assert len(threads) == 1
    assert threads != {threading.current_thread().name}


def test_an_error_is_raised_where_its_batch_is_asked_for():
    def make(number):
        if number == 1:
            raise ValueError("bad batch")
        return number

    prefetcher = Prefetcher(make, pin=False)
    assert prefetcher.get([0]) == [0]
    with pytest.raises(ValueError, match="bad batch"):
        prefetcher.get([1])
    prefetcher.close()


def test_a_cpu_prepares_nothing():
    asked = []

    class Batches:
        def __getitem__(self, number):
            asked.append(number)
            return number

    with prefetching(Batches(), torch.device("cpu")) as get:
        assert get(range(2, 4)) == [2, 3]
    assert asked == [2, 3]


def test_only_named_tuples_are_pinned():
    assert pinned("something else") == "something else"
