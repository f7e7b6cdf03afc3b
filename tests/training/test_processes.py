"""Processes that work together. `test_parallel.py` starts several; here threads and fakes stand for them."""

import socket

import pytest
import torch.distributed as dist

from glassformer.training import processes as module
from glassformer.training.processes import JoinError, Processes, SharedError, is_lost_connection, joined


def test_one_process_needs_no_others():
    alone = Processes()
    assert alone.is_leader
    assert alone.broadcast(3) == 3
    assert alone.gather(3) == [3]
    with pytest.raises(KeyError), alone.together():
        raise KeyError
    assert alone.after_leader(lambda: 5, share=lambda: None, take=lambda _: None) == 5
    alone.check_equal("other data", 1, "")
    with joined() as found:
        assert found == alone


@pytest.fixture
def two(monkeypatch):
    """The second of two processes; `others` are the values of the first one."""
    others = []
    monkeypatch.setattr(Processes, "gather", lambda self, value: [others.pop(0), value])
    monkeypatch.setattr(Processes, "broadcast", lambda self, value: others.pop(0))
    return Processes(1, 2), others


def test_an_error_of_one_process_is_raised_in_all(two):
    process, others = two
    others.append(None)
    with pytest.raises(SharedError, match=r"^process 1 of 2: no such file$"), process.together():
        raise FileNotFoundError("no such file")
    others.append(("vocab_size=0: expected at least 1", 2))
    with pytest.raises(SharedError, match=r"^vocab_size=0: expected at least 1$") as error, process.together():
        pass
    assert error.value.exit_code == 2


def test_the_leader_goes_first_and_its_error_is_the_one_that_counts(two):
    process, others = two
    taken = []
    others += [(True, "shared"), None]
    assert process.after_leader(lambda: taken[0], share=lambda: "", take=taken.append) == "shared"
    others += [(False, None), ("the disk is full", 1)]
    with pytest.raises(SharedError, match="the disk is full"):
        process.after_leader(lambda: taken.append("never"), share=lambda: "", take=taken.append)
    assert taken == ["shared"]


def test_work_is_divided_and_its_results_are_in_order(two):
    process, others = two
    others += [None, ["a", "c", "e"]]
    assert process.divide("abcde", list) == ["a", "b", "c", "d", "e"]
    others += [None, ["a"]]
    assert process.divide("a", lambda part: pytest.fail("nothing to do")) == ["a"]
    others += [("the GPU is full", 1)]
    with pytest.raises(SharedError, match="the GPU is full"):
        process.divide("ab", list)


def test_the_leader_decides(two):
    process, others = two
    others.append("leader's")
    assert process.by_leader(lambda state: "own")(0) == "leader's"
    assert Processes().by_leader(str)(5) == "5"


def test_a_process_with_other_data_is_named(two):
    process, others = two
    others.append('{"data": 1}')
    with pytest.raises(SharedError, match=r"process 1 of 2 has other data: expected the same as process 0. Copy it"):
        process.check_equal("other data", {"data": 2}, "Copy it")


def test_a_broken_environment_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(JoinError, match="RANK='one' in the environment"), joined("cpu"):
        pass


def test_a_process_that_nobody_joins_gives_up(monkeypatch):
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.5)
    more = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    with (
        pytest.raises(ValueError, match="expected all of them to be started, with the same MASTER_ADDR"),
        joined("cpu"),
    ):
        pass


@pytest.mark.parametrize(("local", "kind"), [(2, JoinError), (3, SharedError)])
def test_one_process_reports_that_there_are_too_few_gpus(monkeypatch, local, kind):
    """Only the first process of the run prints a SharedError."""
    more = {"RANK": str(local), "WORLD_SIZE": "4", "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": "4"}
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 2)
    problem = "4 processes on this machine: it has 2 GPUs, expected as many"
    with pytest.raises(ValueError, match=problem) as caught, joined("auto"):
        pass
    assert caught.type is kind


@pytest.mark.parametrize(("local", "kind"), [(0, JoinError), (1, SharedError)])
def test_one_process_of_a_machine_reports_that_no_process_answers(monkeypatch, local, kind):
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.5)
    more = {"RANK": str(local + 1), "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    for name, value in {**more, "LOCAL_RANK": str(local)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"no process answers at localhost:\d+") as caught, joined("cpu"):
        pass
    assert caught.type is kind


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_one_process_can_have_a_group_of_its_own():
    with joined("cpu", is_needed=True) as alone:
        assert alone == Processes()
        assert dist.is_initialized()
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError("[.../gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:35223: Connection reset"), True),
        (RuntimeError("[.../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), True),
        (dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), True),
        (dist.DistBackendError("NCCL error: remote process exited or there was a network error"), True),
        (dist.DistBackendError("NCCL error: invalid usage"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_lost_process_is_one_sentence_and_a_bug_is_not(error, is_lost):
    assert is_lost_connection(error) == is_lost
    with pytest.raises(SharedError if is_lost else RuntimeError), joined("cpu", is_needed=True):
        raise error
    assert not dist.is_initialized()
