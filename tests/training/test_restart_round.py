"""Processes of one round agree on a name, whatever earlier rounds have left in their store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from glassformer.training.restart_round import agree_on_round

PATIENCE = timedelta(seconds=30)


def agree(store, size, ranks=None, patience=PATIENCE):
    """Let threads agree that stand for processes with these ranks, and return their names of the round."""
    chosen = range(size) if ranks is None else ranks
    with ThreadPoolExecutor(size) as threads:
        found = [threads.submit(agree_on_round, store, rank, size, patience) for rank in chosen]
        return [name.result() for name in found]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_processes_of_a_round_get_the_same_name_and_each_round_another(size):
    store = PrefixStore("glassformer", HashStore())
    rounds = [agree(store, size) for _ in range(3)]
    assert all(len(set(names)) == 1 for names in rounds)
    assert len({names[0] for names in rounds}) == 3


@pytest.mark.parametrize("came", [[0], [1], [0, 1], [1, 2]])
def test_processes_that_ended_before_all_had_come_do_not_count(came):
    """The numbers of the first round are still there when the second one begins."""
    store = PrefixStore("glassformer", HashStore())
    with pytest.raises(TimeoutError, match="not all 3 processes"):
        agree(store, 3, came, patience=timedelta(seconds=0.3))
    assert len(set(agree(store, 3))) == 1


def test_a_process_waits_for_one_that_starts_later():
    store = PrefixStore("glassformer", HashStore())
    agree(store, 2)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(agree_on_round, store, 0, 2, PATIENCE)
        with pytest.raises(TimeoutError):
            first.result(timeout=0.4)
        assert threads.submit(agree_on_round, store, 1, 2, PATIENCE).result() == first.result()
