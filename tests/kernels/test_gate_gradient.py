"""The gradient of a gate is that of autograd, in plain torch and by the kernel."""

import pytest
import torch

from glassformer.kernels.gate_gradient import exchange_gate_gradient, gate_gradient
from glassformer.kernels.gradient_rows import ACTIVATIONS, value_of

COMPARE = """
import torch
from glassformer.kernels import gate_gradient as module, gradient_rows

has_gpu = torch.cuda.is_available()
device = "cuda" if has_gpu else "cpu"
if not has_gpu:  # the interpreter lacks the function, and rows of several blocks take long in it
    module.BLOCK = 16
    module._can_use_kernel = lambda *tensors: True
    gradient_rows.libdevice = type("Plain", (), {"fast_dividef": staticmethod(lambda x, y: x / y)})
torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
    for activation in gradient_rows.ACTIVATIONS:
        for n_rows, width in ((3, 16), (5, 30), (2, 7), *([(40, 5632)] if has_gpu else [])):
            gradient = torch.randn(n_rows, width, device=device).to(dtype)
            joined = torch.randn(n_rows, 2 * width, device=device).to(dtype)
            assert module._can_use_kernel(gradient, joined)
            found = module.gate_gradient(gradient, joined, activation)
            right = module._in_torch(gradient.double(), joined.double(), activation)
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), right, atol=tolerance, rtol=tolerance)
            gate, up = joined.double().chunk(2, 1)
            right = gradient_rows.value_of(gate, activation) * up
            module.exchange_gate_gradient(gradient, joined, activation)
            assert torch.equal(joined, found)
            torch.testing.assert_close(gradient.double(), right, atol=tolerance, rtol=tolerance)
"""


def test_the_kernel_equals_plain_torch(run_kernels):
    run_kernels(COMPARE)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradient_is_that_of_autograd(activation):
    torch.manual_seed(0)
    joined, upstream = torch.randn(5, 12, requires_grad=True), torch.randn(5, 6)
    gate, up = joined.chunk(2, 1)
    (right,) = torch.autograd.grad(value_of(gate, activation) * up, joined, upstream)
    found = gate_gradient(upstream, joined.detach(), activation)
    torch.testing.assert_close(found, right, atol=1e-6, rtol=1e-5)
    replaced = joined.detach().clone()
    exchange_gate_gradient(upstream, replaced, activation)
    assert torch.equal(replaced, found)
    torch.testing.assert_close(upstream, (value_of(gate, activation) * up).detach())


def test_the_shape_is_known_without_computing():
    arguments = torch.randn(4, 8), torch.randn(4, 16), "silu"
    for operator in (gate_gradient, exchange_gate_gradient):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
