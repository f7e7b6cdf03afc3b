"""Places for the intermediate results of replayed steps."""

import pytest
import torch

from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.runtime.cpu_graphs import CpuGraph, OperationRecorder
from glassformer.runtime.replay_memory import Lifetime, ReplayMemory, choose_places, find_lifetimes

try:
    cpp_kernels()
except KernelBuildError as error:
    pytest.skip(f"no C++ kernels: {error}", allow_module_level=True)


@pytest.mark.parametrize("seed", range(5))
def test_places_of_tensors_that_live_at_the_same_time_do_not_overlap(seed):
    torch.manual_seed(seed)
    first, length, size = (torch.randint(*limits, (60,)).tolist() for limits in ((0, 50), (0, 9), (1, 5000)))
    lifetimes = {key: Lifetime(a, a + b, c) for key, (a, b, c) in enumerate(zip(first, length, size, strict=True))}
    places, total = choose_places(lifetimes)
    for one, life in lifetimes.items():
        assert places[one] % 64 == 0
        assert places[one] + life.size <= total
        for other, its in lifetimes.items():
            if other != one and life.first <= its.last and its.first <= life.last:
                assert places[one] >= places[other] + its.size or places[other] >= places[one] + life.size
    assert total < sum(size) / 3  # at most 9 of 60 steps each


def test_a_chain_of_results_needs_the_memory_of_two():
    x, memory = torch.ones(1000), ReplayMemory()

    def chain():
        y = x
        for _ in range(10):
            y = y * 2
        return y

    graph = CpuGraph(chain, memory)
    with torch.inference_mode():
        assert graph()[0] == 1024  # the recorded call itself has the right result
        x.fill_(3)
        assert torch.equal(graph(), torch.full_like(x, 3072))
    assert 8000 <= memory.nbytes <= 8000 + 128


def test_several_steps_share_one_memory():
    memory, x = ReplayMemory(), torch.zeros(64)
    steps = [CpuGraph(lambda n=n: (x[:n] + 1).exp() * n, memory) for n in (64, 32, 48)]
    with torch.inference_mode():
        for value in range(3):
            x.fill_(value)
            for step, n in zip(steps, (64, 32, 48), strict=True):
                torch.testing.assert_close(step(), (torch.full((n,), float(value)) + 1).exp() * n)
    assert memory.nbytes == 512


def test_a_table_that_somebody_keeps_stays_where_it_is():
    tables, x = {}, torch.zeros(4)

    def step():
        if "table" not in tables:
            tables["table"] = x.new_ones(4).cumsum(0) * (x * 0 + 1)  # depends on an input, so the call is repeated
            tables["part"] = tables["table"].neg()[1:]
        return x + tables["table"] + (x * 5).sum()

    graph = CpuGraph(step)
    with torch.inference_mode():
        for value in range(3):
            x.fill_(value)
            assert torch.equal(graph(), value + torch.arange(1, 5) + 20.0 * value)
            assert torch.equal(tables["table"], torch.arange(1, 5.0))
            assert torch.equal(tables["part"], -torch.arange(2, 5.0))


def test_memory_that_a_step_reads_before_it_is_made_belongs_to_the_caller():
    kept = torch.zeros(3)
    with torch.inference_mode(), OperationRecorder() as recorder:
        kept.add_(1)
        result = kept * 2
    assert find_lifetimes(recorder.calls, result) == {result.untyped_storage().data_ptr(): Lifetime(1, 2, 12)}
