"""Steps that are recorded for two numbers of rows and replayed for any number."""

import pytest
import torch
from torch.nn import functional as F

from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.runtime.replay_memory import ReplayMemory
from glassformer.runtime.resizable_graph import ResizableGraph

try:
    cpp_kernels()
except KernelBuildError as error:
    pytest.skip(f"no C++ kernels: {error}", allow_module_level=True)

ROWS = 12
WEIGHT = torch.randn(8, 8)
STEPS = {
    "products and norms": lambda x: F.layer_norm(x @ WEIGHT + 1, (8,)).relu(),
    "another axis": lambda x: (x.t().contiguous() * 2).cumsum(0).t(),
    "heads": lambda x: x.view(-1, 2, 4).transpose(0, 1).contiguous().sum(0),
    "a constant with a number for each row": lambda x: x + torch.arange(len(x))[:, None],
    "a part of each row": lambda x: x[:, 2:5] * 3,
    "a view": lambda x: (x * 2)[:, None, :][:, 0],
    "groups of two rows": lambda x: x.view(-1, 2, 8).sum(1),
}
DEPENDENT = {
    "another operation": lambda x: x + 1 if len(x) > ROWS // 2 else x * 2,
    "a number": lambda x: x * len(x),
    "a place": lambda x: x[len(x) // 2 :] + 1,
    "a constant": lambda x: x + torch.tensor(float(len(x))),
    "a size": lambda x: torch.cat([x, x[:1]]) + 1,
    "more calls": lambda x: x + 1 if len(x) > ROWS // 2 else (x + 1) * 2,
}


@pytest.fixture(autouse=True)
def _in_inference_mode():
    with torch.inference_mode():
        yield


def recorded(step, x):
    graph = ResizableGraph(ReplayMemory())
    return graph if graph.record(lambda rows: lambda: step(x[:rows]), ROWS, ROWS // 2) else None


@pytest.mark.parametrize("name", STEPS)
def test_replays_equal_the_step_for_every_number_of_rows(name):
    x = torch.randn(ROWS, 8)
    graph = recorded(STEPS[name], x)
    assert graph is not None
    for rows in (2, ROWS, 6, 10, 4):
        x.copy_(torch.randn(ROWS, 8))
        expected = STEPS[name](x[:rows])
        found = graph(rows)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", DEPENDENT)
def test_a_step_that_depends_on_the_number_of_rows_is_refused(name):
    assert recorded(DEPENDENT[name], torch.randn(ROWS, 8)) is None


def test_a_replay_leaves_the_other_rows_alone():
    x = torch.zeros(ROWS, 8)
    graph = recorded(lambda part: part.add_(1), x)
    x.zero_()
    graph(5)
    assert x[:5].eq(1).all()
    assert x[5:].eq(0).all()


def test_a_wrong_number_of_rows_is_refused():
    graph = recorded(STEPS["groups of two rows"], torch.zeros(ROWS, 8))
    with pytest.raises(RuntimeError, match="13 rows, expected 1 to 12"):
        graph(13)
    with pytest.raises(RuntimeError, match="3 of 12 rows split a group"):
        graph(3)
