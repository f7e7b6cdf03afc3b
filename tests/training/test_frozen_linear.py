"""Frozen layers in 8 and 4 bits: the weights that they stand for, and the gradient of their input."""

import pytest
import torch
from torch import nn

from glassformer.training.frozen_linear import FrozenLinear


@pytest.mark.parametrize(("bits", "error"), [("int8", 0.005), ("int4", 0.06)])
@pytest.mark.parametrize("n_in", [32, 40])
def test_the_weights_are_close_and_the_gradient_is_that_of_the_same_weights(bits, error, n_in):
    linear = nn.Linear(n_in, 12)
    layer = FrozenLinear(linear, bits)
    weight = layer.dequantize(torch.float32)
    assert weight.shape == (12, n_in)
    assert (weight - linear.weight).abs().max() < error * linear.weight.abs().max() * 2
    x = torch.randn(2, 3, n_in, requires_grad=True)
    layer(x).square().sum().backward()
    found, x.grad = x.grad, None
    nn.functional.linear(x, weight, linear.bias).square().sum().backward()
    torch.testing.assert_close(found, x.grad)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == []


def test_four_bits_keep_weights_that_have_four_bits_exactly():
    linear = nn.Linear(64, 4, bias=False)
    with torch.no_grad():
        levels = torch.randint(0, 16, (4, 64))
        levels[:, ::32], levels[:, 1::32] = 0, 15  # each group of 32 has the lowest and the highest level
        linear.weight.copy_(levels * 0.25 - 2)
    assert torch.equal(FrozenLinear(linear, "int4").dequantize(torch.float32), linear.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert FrozenLinear(linear, "int8")(torch.randn(2, 64)).dtype == torch.bfloat16
