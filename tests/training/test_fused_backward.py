"""Layers with a fused backward pass compute what plain layers compute, in plain torch on a CPU."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.nn import FeedForward
from glassformer.training import float8_linear
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.float8_linear import use_float8
from glassformer.training.fused_backward import FusedFeedForward, FusedProjections, fuse_backward

TOKENS = torch.arange(24).view(2, 12) % 7


def make_copy(name="tiny-gpt2", **changes):
    torch.manual_seed(0)
    model = build_model(preset(name, vocab_size=61, **{"dropout": 0.0, **changes}))
    return ComputeCopy(model, torch.float32).module.train()


def gradients_of(model):
    torch.manual_seed(1)
    outputs = model(TOKENS, TOKENS) if model.kind == "encoder_decoder" else model(TOKENS)
    outputs[..., :61].square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-transformer-base"])
def test_gradients_are_those_of_the_plain_layers(name, activation):
    plain, fused = (make_copy(name, activation=activation) for _ in range(2))
    n_layers = sum(isinstance(module, FeedForward) for module in plain.modules())
    assert fuse_backward(fused) == 2 * n_layers
    assert sum(isinstance(module, FusedFeedForward) for module in fused.modules()) == n_layers
    right, found = gradients_of(plain), gradients_of(fused)
    assert list(right) == list(found)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-4, rtol=1e-4)


def test_dropout_inside_the_network_and_layers_of_another_form_stay_as_they_are():
    plain, fused = (make_copy(activation_dropout=0.5) for _ in range(2))
    fuse_backward(fused)
    for own, right in zip(gradients_of(fused).values(), gradients_of(plain).values(), strict=True):
        torch.testing.assert_close(own, right, atol=1e-4, rtol=1e-4)
    gated = make_copy("tiny-llama")
    assert fuse_backward(gated) == len(gated.decoder.layers)
    assert not any(isinstance(module, FusedFeedForward) for module in gated.modules())
    right, found = gradients_of(make_copy("tiny-llama")), gradients_of(gated)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-4, rtol=1e-4)


def test_layers_without_biases_are_fused_too():
    changes = {"qkv_bias": False, "ffn_bias": False}
    plain, fused = (make_copy(**changes) for _ in range(2))
    assert fuse_backward(fused)
    for own, right in zip(gradients_of(fused).values(), gradients_of(plain).values(), strict=True):
        torch.testing.assert_close(own, right, atol=1e-4, rtol=1e-4)


def test_in_fp8_they_equal_the_fp8_layers(monkeypatch):
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 1)
    plain, fused = (make_copy() for _ in range(2))
    for model in (plain, fused):
        use_float8(model)
    fuse_backward(fused)
    assert any(isinstance(module, FusedProjections) for module in fused.modules())
    right, found = gradients_of(plain), gradients_of(fused)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-3, rtol=1e-3)


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("in_float8", [False, True])
def test_compiled_layers_give_the_same_gradients(monkeypatch, in_float8):
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 1)
    models = [make_copy() for _ in range(2)]
    for model in models:
        if in_float8:
            use_float8(model)
        fuse_backward(model)
    for layer in models[1].decoder.layers:
        layer.compile(backend="aot_eager")
    right, found = (gradients_of(model) for model in models)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-3, rtol=1e-3)
