"""Linear layers, norms, activations and the feed-forward network of the reference, compared with torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from glassformer.reference.blocks import ACTIVATIONS, FeedForward, Linear, Lookup, make_norm
from glassformer.reference.parameters import Parameters

RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.standard_normal(shape)


def torch_gradients(function, *arrays):
    """Return the output of a torch function and the gradients of its inputs, for a random gradient of the output."""
    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays]
    output = function(*tensors)
    direction = torch.from_numpy(random(*output.shape))
    output.backward(direction)
    return output.detach().numpy(), direction.numpy(), [tensor.grad.numpy() for tensor in tensors]


def assert_same(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_torchs(bias):
    x, weight, offset = random(2, 3, 4), random(5, 4), random(5)
    inputs = (x, weight, offset) if bias else (x, weight)
    output, direction, grads = torch_gradients(F.linear, *inputs)
    params = Parameters({"weight": weight, **({"bias": offset} if bias else {})})
    linear = Linear(params)
    assert_same(linear.forward(x), output)
    assert_same(linear.backward(direction), grads[0])
    for name, expected in zip(("weight", "bias"), grads[1:], strict=False):
        assert_same(params.grads[name], expected)


def test_lookup_adds_the_gradients_of_repeated_ids():
    params = Parameters({"weight": random(4, 2)})
    lookup = Lookup(params)
    ids = np.array([[1, 3, 1]])
    assert (lookup.forward(ids)[0, 2] == params["weight"][1]).all()
    lookup.backward(np.array([[[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]]]))
    assert params.grads["weight"].tolist() == [[0.0, 0.0], [11.0, 22.0], [0.0, 0.0], [3.0, 4.0]]


def mean_std_norm(x, weight, bias):
    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1) + bias


NORMS = {
    "layer": lambda x, weight, bias: F.layer_norm(x, (6,), weight, bias, 0.1),
    "rms": lambda x, weight: F.rms_norm(x, (6,), weight, 0.1),
    "mean_std": mean_std_norm,
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms_equal_torchs(kind):
    x, weight, bias = random(2, 3, 6), random(6), random(6)
    values = {"weight": weight} if kind == "rms" else {"weight": weight, "bias": bias}
    output, direction, grads = torch_gradients(NORMS[kind], x, *values.values())
    params = Parameters(values)
    norm = make_norm(kind, params, 0.1)
    assert_same(norm.forward(x), output)
    assert_same(norm.backward(direction), grads[0])
    for name, expected in zip(values, grads[1:], strict=True):
        assert_same(params.grads[name], expected)


TORCH_ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: 1 * x,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_their_derivatives_equal_torchs(name):
    x = 3 * random(50)
    output, direction, (grad,) = torch_gradients(TORCH_ACTIVATIONS[name], x)
    value, slope = ACTIVATIONS[name](x)
    assert_same(value, output)
    assert_same(slope * direction, grad)


@pytest.mark.parametrize("gated", [True, False])
def test_feed_forward_equals_torchs(gated):
    x, up, gate, down = random(2, 3, 4), random(5, 4), random(5, 4), random(4, 5)

    def expected(x, up, down, gate=None):
        raised = F.linear(x, up)
        return F.linear(F.silu(raised) if gate is None else F.silu(F.linear(x, gate)) * raised, down)

    values = {"up_proj.weight": up, "down_proj.weight": down} | ({"gate_proj.weight": gate} if gated else {})
    output, direction, grads = torch_gradients(expected, x, *values.values())
    params = Parameters(values)
    ffn = FeedForward(params, "silu", gated)
    assert_same(ffn.forward(x), output)
    assert_same(ffn.backward(direction), grads[0])
    for name, grad in zip(values, grads[1:], strict=True):
        assert_same(params.grads[name], grad)
