"""Layers with a fused backward pass compute what plain layers compute, in plain torch on a CPU."""

import pytest
import torch

from glassformer.models import PRESETS, build_model, preset
from glassformer.nn import FeedForward, MultiHeadAttention
from glassformer.training import float8_linear
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.float8_linear import use_float8
from glassformer.training.fused_attention import FusedSelfAttention
from glassformer.training.fused_backward import FusedFeedForward, FusedGatedFeedForward, fuse_backward
from glassformer.training.fused_embedding import fuse_embeddings
from glassformer.training.fused_norm import fuse_norms

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
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-transformer-base", "tiny-llama"])
def test_gradients_are_those_of_the_plain_layers(name, activation):
    plain, fused = (make_copy(name, activation=activation) for _ in range(2))
    n_layers = sum(isinstance(module, FeedForward) for module in plain.modules())
    n_attentions = sum(isinstance(module, MultiHeadAttention) for module in plain.modules())
    assert fuse_backward(fused) == n_layers + n_attentions
    kind = FusedGatedFeedForward if name == "tiny-llama" else FusedFeedForward
    assert sum(isinstance(module, kind) for module in fused.modules()) == n_layers
    right, found = gradients_of(plain), gradients_of(fused)
    assert list(right) == list(found)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_dropout_inside_the_network_stays_as_it_is(name):
    plain, fused = (make_copy(name, activation_dropout=0.5) for _ in range(2))
    fuse_backward(fused)
    for own, right in zip(gradients_of(fused).values(), gradients_of(plain).values(), strict=True):
        torch.testing.assert_close(own, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "has_bias"), [("tiny-gpt2", False), ("tiny-transformer-base", False), ("tiny-llama", True)]
)
def test_networks_with_and_without_biases_are_fused(name, has_bias):
    plain, fused = (make_copy(name, qkv_bias=has_bias, ffn_bias=has_bias) for _ in range(2))
    assert fuse_backward(fused)
    for own, right in zip(gradients_of(fused).values(), gradients_of(plain).values(), strict=True):
        torch.testing.assert_close(own, right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "kind"), [("tiny-gpt2", FusedFeedForward), ("tiny-llama", FeedForward)])
def test_in_fp8_they_equal_the_fp8_layers(monkeypatch, name, kind):
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 1)
    plain, fused = (make_copy(name) for _ in range(2))
    for model in (plain, fused):
        use_float8(model)
    fuse_backward(fused)
    assert all(type(layer.ffn) is kind for layer in fused.decoder.layers)
    assert any(isinstance(module, FusedSelfAttention) for module in fused.modules())
    right, found = gradients_of(plain), gradients_of(fused)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_every_preset_has_the_gradients_of_the_plain_model(name):
    """With all that a GPU fuses: feed-forward networks, attention, norms and embeddings."""
    rates = {rate: 0.0 for rate in vars(preset(name)) if "drop" in rate}
    plain, fused = make_copy(name, **rates), make_copy(name, **rates)
    assert fuse_backward(fused) + fuse_norms(fused) + fuse_embeddings(fused)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, 9:] = False
    for model in (plain, fused):
        inputs = (TOKENS, TOKENS, mask, mask) if model.kind == "encoder_decoder" else (TOKENS, mask)
        model(*inputs).square().sum().backward()
    right = {key: parameter.grad for key, parameter in plain.named_parameters() if parameter.grad is not None}
    found = {key: parameter.grad for key, parameter in fused.named_parameters() if parameter.grad is not None}
    torch.testing.assert_close(found, right, atol=1e-3, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("in_float8", [False, True])
@pytest.mark.parametrize("changes", [{}, {"activation": "relu"}, {"name": "tiny-llama"}])
def test_compiled_layers_give_the_same_gradients(monkeypatch, in_float8, changes):
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 1)
    models = [make_copy(**changes) for _ in range(2)]
    for model in models:
        if in_float8:
            use_float8(model)
        fuse_backward(model)
    for layer in models[1].decoder.layers:
        layer.compile(backend="aot_eager")
    right, found = (gradients_of(model) for model in models)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-3, rtol=1e-3)


def test_with_checkpointing_the_gradients_of_a_gate_replace_it():
    plain, fused = make_copy("tiny-llama"), make_copy("tiny-llama")
    fused.set_gradient_checkpointing(True)
    fuse_backward(fused)
    assert all(module.is_repeated for module in fused.modules() if isinstance(module, FusedGatedFeedForward))
    right, found = gradients_of(plain), gradients_of(fused)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-4, rtol=1e-4)
