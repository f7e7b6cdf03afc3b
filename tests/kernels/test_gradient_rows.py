"""Activations and gradients of rows are those of torch. With a GPU, the kernels equal plain torch."""

import pytest
import torch

from glassformer.kernels import gradient_rows
from glassformer.kernels.float8_rows import quantize_rows
from glassformer.kernels.gradient_rows import (
    ACTIVATIONS,
    activate_rows,
    activation_gradient,
    join_gradients,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def check_quantized(numbers, factors, right):
    assert numbers.shape == right.shape
    assert factors.shape == (len(right), 1)
    torch.testing.assert_close(numbers.float() * factors, right.float(), rtol=0.07, atol=float(factors.max()) / 64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("n_rows", "width"), [(3, 16), (700, 48), (5, 1030)])
def test_activations_and_their_gradients_are_those_of_torch(device, activation, n_rows, width):
    torch.manual_seed(0)
    x = torch.randn(n_rows, width, device=device)
    upstream = torch.randn_like(x)
    exact = x.double().requires_grad_()
    right = gradient_rows.value_of(exact, activation)
    (gradient,) = torch.autograd.grad(right, exact, upstream.double())
    value, *quantized = activate_rows(x, activation)
    torch.testing.assert_close(value, right.detach().float(), atol=1e-5, rtol=1e-4)
    check_quantized(*quantized, right.detach())
    for quantizes in (False, True):
        found, sums, numbers, factors = activation_gradient(upstream, x, activation, quantizes)
        torch.testing.assert_close(found, gradient.float(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(sums.sum(0), gradient.sum(0).float(), atol=1e-4, rtol=1e-4)
        if quantizes:
            check_quantized(numbers, factors, gradient)
        else:
            assert not len(numbers)
            assert not len(factors)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("wide", "narrow"), [(16, 16), (48, 16), (33, 7)])
def test_joined_gradients_and_their_sums_are_those_of_torch(device, wide, narrow):
    torch.manual_seed(0)
    parts = [torch.randn(600, width, device=device) for width in (wide, narrow, narrow)]
    right = torch.cat(parts, 1)
    for quantizes in (False, True):
        joined, sums, numbers, factors = join_gradients(*parts, quantizes)
        assert torch.equal(joined, right)
        torch.testing.assert_close(sums.sum(0), right.double().sum(0).float(), atol=1e-4, rtol=1e-4)
        if quantizes:
            check_quantized(numbers, factors, right)
            expected = quantize_rows(right)
            torch.testing.assert_close(factors, expected.factors)


@pytest.mark.parametrize("quantizes", [False, True])
def test_shapes_are_known_without_computing(quantizes):
    x = torch.randn(4, 16)
    arguments = {
        activate_rows: (x, "relu"),
        activation_gradient: (x, x, "gelu", quantizes),
        join_gradients: (x, x[:, :8].contiguous(), x[:, 8:].contiguous(), quantizes),
    }
    for operator, given in arguments.items():
        torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("n_rows", [1, 1023, 1024, 1025, 32768, 33000])
def test_every_row_belongs_to_a_program(n_rows):
    n_turns = gradient_rows._n_turns(n_rows)
    assert (n_turns - 1) * gradient_rows.N_PROGRAMS < n_rows <= n_turns * gradient_rows.N_PROGRAMS
