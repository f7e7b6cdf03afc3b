"""The C++ kernels as functions of autograd: gradients flow to every input, once, and modules are recognized."""

import pytest
import torch
from torch import nn

from glassformer.kernels.cpu_norms import BranchRules
from glassformer.training.cpu_functions import (
    AddAndNormalize,
    AddDropped,
    Drop,
    Normalize,
    SiluGate,
    TiedLookup,
    has_hooks,
    is_float32,
    norm_name,
)

pytestmark = pytest.mark.usefixtures("training_kernels")


def leaves(n):
    torch.manual_seed(0)
    return [torch.randn(6, 20, requires_grad=True) for _ in range(n)]


def parameters(n):
    return [torch.randn(20, requires_grad=True) for _ in range(n)]


def normalize(x, weight, bias):
    kept, y = Normalize.apply(x, weight, bias, "layer", 1e-5)
    return kept.sin() + y


FUNCTIONS = {
    "gate": (SiluGate.apply, 2, 0),
    "dropout": (lambda x: Drop.apply(x, 0.5, 3), 1, 0),
    "sum": (lambda x, branch: AddDropped.apply(x, branch, 0.5, 3), 2, 0),
    "norm": (normalize, 1, 2),
    "norm of a sum": (lambda *given: AddAndNormalize.apply(*given, None, "rms", 1e-5, BranchRules(0.3, 9)), 2, 1),
    "with nothing dropped": (lambda *given: AddAndNormalize.apply(*given, "layer", 1e-5, BranchRules()), 2, 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_along_a_direction_changes_the_result_by_the_gradient(name):
    function, n_rows, n_parameters = FUNCTIONS[name]
    inputs = leaves(n_rows) + parameters(n_parameters)
    upstream = torch.randn(6, 20)
    gradients = torch.autograd.grad((function(*inputs) * upstream).sum(), inputs)
    for place, gradient in enumerate(gradients):
        direction, step = torch.randn_like(gradient), 1e-2
        values = []
        for sign in (1, -1):
            moved = [x.detach() + sign * step * direction if i == place else x.detach() for i, x in enumerate(inputs)]
            values.append((function(*moved).double() * upstream).sum())
        slope = (values[0] - values[1]) / (2 * step)
        size = (gradient * direction).norm() + 1
        assert (slope - (gradient * direction).sum()).abs() < 0.01 * size, f"input {place}"


def test_gradients_of_gradients_are_refused():
    (x,) = leaves(1)
    (gradient,) = torch.autograd.grad(Drop.apply(x, 0.5, 3).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_tied_table_has_the_gradients_of_all_its_uses():
    table, ids = torch.randn(9, 4, requires_grad=True), torch.tensor([[1, 1, 8], [0, 1, 3]])
    results = []
    for look_up in (TiedLookup.apply, nn.functional.embedding):
        table.grad = None
        (look_up(ids, table) @ table.t()).sin().sum().backward()
        results.append(table.grad)
    assert results[0].layout == torch.strided
    torch.testing.assert_close(*results)


def test_the_norms_that_the_kernels_know():
    assert [norm_name(norm) for norm in (nn.LayerNorm(3), nn.RMSNorm(3, eps=1e-6))] == ["layer", "rms"]
    assert [norm_name(norm) for norm in (None, nn.Identity(), nn.RMSNorm(3), nn.BatchNorm1d(3))] == [None] * 4


def test_what_the_kernels_can_read():
    assert is_float32(torch.ones(2))
    assert not is_float32(torch.ones(2), torch.ones(2).double())
    assert not is_float32(torch.ones(0))
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_float32(torch.ones(2))


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_are_seen(kind):
    layer = nn.Linear(2, 2)
    assert not has_hooks(layer)
    getattr(layer, f"register_{kind}_hook")(lambda *given: None)
    assert has_hooks(layer)
