"""Computations that are recorded on a CPU and replayed from C++."""

import sys

import pytest
import torch
from torch.nn import functional as F

from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.runtime.cpu_graphs import CpuGraph, OperationRecorder, make_program
from glassformer.runtime.replay_memory import ReplayMemory

try:
    cpp_kernels()
except KernelBuildError as error:
    pytest.skip(f"no C++ kernels: {error}", allow_module_level=True)

x = torch.zeros(3, 8)
whole = torch.zeros(1, dtype=torch.long)
weight = torch.randn(8, 8)


def counting():
    """Change two tensors in place, one of them made in the step, and return a view."""
    whole.add_(1)
    made = torch.zeros(3, 8)
    made[:, 2:4] = x[:, :2] * whole
    return made.transpose(0, 1)


COMPUTATIONS = {
    "products and norms": lambda: F.layer_norm(x @ weight + 1, (8,)) * 2,
    "a product of rows in batches": lambda: F.linear(x.view(1, 3, 8), weight),
    "rms norm": lambda: F.rms_norm(x, (8,)),
    "numbers as tensors": lambda: torch.where(x > 0.5, x, 0.25) - 3,
    "a constant": lambda: torch.arange(8) * x,
    "several results": lambda: x.max(-1).values + x.topk(2, dim=-1).values[:, 1],
    "converted": lambda: (x > 0).to(torch.float64).cumsum(-1),
    "indices": lambda: weight[(x[:, 0].abs() * 2).long().clamp_max(7)],
    "lists of tensors": lambda: torch.cat([x, x.chunk(2, -1)[1]], -1),
    "a memory format": lambda: x.t().contiguous() + 1,
    "in place": counting,
    "attention": lambda: F.scaled_dot_product_attention(*(x.view(1, 1, 3, 8) for _ in range(3))),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_a_replay_equals_the_plain_computation_on_new_inputs(name):
    compute = COMPUTATIONS[name]
    graph = CpuGraph(compute)
    with torch.inference_mode():
        for seed in range(4):
            torch.manual_seed(seed)
            x.normal_()
            whole.fill_(seed)
            expected, left = compute().clone(), whole.clone()
            whole.fill_(seed)
            assert torch.equal(graph(), expected)
            assert torch.equal(whole, left)


def test_views_constants_and_unused_results_are_not_replayed():
    with torch.inference_mode(), OperationRecorder() as recorder:
        result = x.view(24).view(4, 6) + torch.ones(6)
        assert bool((x.amax() < 1000).item())
    called = [call.operation.overloadpacket for call in recorder.calls]
    assert {torch.ops.aten.view, torch.ops.aten.ones, torch.ops.aten.amax} <= {*called}
    program = make_program(recorder.calls, result, ReplayMemory())
    assert program.size() == 1


def test_recording_a_product_imports_no_symbolic_shapes(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)  # importing it is an error
    with OperationRecorder() as recorder:
        found = F.linear(x.view(1, 3, 8), weight)
    assert torch.equal(found, F.linear(x, weight)[None])
    assert torch.ops.aten.mm.default in [call.operation for call in recorder.calls]


def test_an_unknown_operation_is_an_error():
    program = torch.classes.glassformer_cpu.Program()
    with pytest.raises(RuntimeError, match="no operation aten::nothing"):
        program.add("aten::nothing", "", [], [])
    with pytest.raises(RuntimeError, match="wrong number of arguments"):
        program.add("aten::relu", "", [], [])
