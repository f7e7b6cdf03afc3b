"""A training leaves torch's random numbers as they were, and a second one beside it is refused."""

import random
import threading

import pytest
import torch

from glassformer.training.random_numbers import using_random_numbers


def test_the_numbers_of_the_caller_go_on_after_a_training():
    torch.manual_seed(5)
    expected, python_state = torch.rand(4), random.getstate()
    torch.manual_seed(5)
    with using_random_numbers():
        torch.manual_seed(1337)
        torch.rand(3)
        random.random()
    assert random.getstate() == python_state
    assert torch.initial_seed() == 5
    assert torch.equal(torch.rand(4), expected)


@using_random_numbers()
def fail():
    torch.manual_seed(1337)
    raise ValueError("no data")


def test_the_numbers_of_the_caller_go_on_after_a_training_that_failed():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="no data"):
        fail()
    assert torch.equal(torch.get_rng_state(), before)
    with using_random_numbers():  # the failed training does not count as running
        pass


def test_a_gpu_that_the_training_used_first_is_seeded_like_the_cpu(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    torch.manual_seed(5)
    with using_random_numbers():
        torch.manual_seed(1337)
    assert seeds[-1] == 5


def test_a_second_training_at_a_time_is_refused():
    refused = []

    def train():
        try:
            with using_random_numbers():
                pass
        except RuntimeError as error:
            refused.append(str(error))

    with using_random_numbers():
        other = threading.Thread(target=train)
        other.start()
        other.join()
        assert "another training runs in this process" in refused[0]
    train()
    assert len(refused) == 1
