"""Fused attention computes what the plain layers compute, forward and backward, in plain torch on a CPU."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.training import float8_linear, fused_attention
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.float8_linear import use_float8
from glassformer.training.fused_attention import FusedCrossAttention, FusedSelfAttention
from glassformer.training.fused_backward import fuse_backward
from glassformer.training.fused_norm import fuse_norms

TOKENS = torch.arange(1, 25).view(2, 12) % 7
REAL = torch.arange(12) < torch.tensor([[12], [5]])


def make_copy(name, **changes):
    torch.manual_seed(0)
    model = build_model(preset(name, vocab_size=61, **{"dropout": 0.0, **changes}))
    return ComputeCopy(model, torch.float32).module.train()


def gradients_of(model, tokens=TOKENS, real=None, target=None, target_real=None):
    torch.manual_seed(1)
    if model.kind == "encoder_decoder":
        target = tokens[:, 3:] if target is None else target
        outputs = model(tokens, target, source_mask=real, target_mask=target_real)
    else:
        outputs = model(tokens, mask=real)
    outputs[..., :61].square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def check_equal(found, right, bound=1e-4):
    assert list(found) == list(right)
    for key, gradient in found.items():
        assert (gradient is None) == (right[key] is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, right[key], atol=bound, rtol=bound)


@pytest.fixture
def calls(monkeypatch):
    """The names of the operations of short attention, as they are called."""
    names = []

    def spy(name):
        operation = getattr(fused_attention, name)
        monkeypatch.setattr(fused_attention, name, lambda *given: (names.append(name), operation(*given))[1])

    for name in ("short_attention", "short_self_attention_gradient", "short_cross_attention_gradient"):
        spy(name)
    return names


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-transformer-base", "tiny-bert-base"])
def test_gradients_are_those_of_the_plain_model(calls, name, padded):
    changes = {"head": "language_model"} if "bert" in name else {}
    changes["attention_dropout"] = 0.0
    plain, fused = (make_copy(name, **changes) for _ in range(2))
    fuse_backward(fused)
    layers = [module for module in fused.modules() if isinstance(module, FusedSelfAttention)]
    crosses = [module for module in fused.modules() if isinstance(module, FusedCrossAttention)]
    assert layers
    assert bool(crosses) == ("transformer" in name)
    real = REAL if padded else None
    check_equal(gradients_of(fused, real=real), gradients_of(plain, real=real))
    assert calls.count("short_attention") == len(layers) + len(crosses)
    assert calls.count("short_self_attention_gradient") == len(layers)
    assert calls.count("short_cross_attention_gradient") == len(crosses)


def test_padding_of_the_target_is_masked_beside_the_causal_mask(calls):
    plain, fused = (make_copy("tiny-transformer-base") for _ in range(2))
    fuse_backward(fused)
    given = {"real": REAL, "target": TOKENS, "target_real": REAL}
    check_equal(gradients_of(fused, **given), gradients_of(plain, **given))
    assert calls


def test_projections_without_biases_are_fused_too():
    plain, fused = (make_copy("tiny-transformer-base", qkv_bias=False) for _ in range(2))
    fuse_backward(fused)
    check_equal(gradients_of(fused, real=REAL), gradients_of(plain, real=REAL))


OTHERS = {
    "rotary positions": ("tiny-llama", {}),
    "grouped heads": ("tiny-llama", {"n_kv_heads": 1, "positions": "learned"}),
    "a window": ("tiny-gpt2", {"sliding_window": 4}),
    "dropout of weights": ("tiny-gpt2", {"attention_dropout": 0.5}),
    "a score bias": ("tiny-gpt2", {"positions": "alibi"}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_attention_is_computed_by_the_plain_layer(calls, what):
    name, changes = OTHERS[what]
    plain, fused = (make_copy(name, **changes) for _ in range(2))
    fuse_backward(fused)
    check_equal(gradients_of(fused), gradients_of(plain))
    assert not calls


def test_long_sequences_are_computed_by_the_plain_layer(calls, monkeypatch):
    monkeypatch.setattr(fused_attention, "max_length", lambda device, head_dim: 11)
    plain, fused = (make_copy("tiny-transformer-base") for _ in range(2))
    fuse_backward(fused)
    target = TOKENS[:, :9]
    check_equal(gradients_of(fused, target=target), gradients_of(plain, target=target))
    assert set(calls) == {"short_attention", "short_self_attention_gradient"}  # of the decoder, with 9 tokens


def test_a_device_without_kernels_keeps_cross_attention_as_it_is(monkeypatch):
    monkeypatch.setattr(fused_attention, "max_length", lambda device, head_dim: 0)
    fused = make_copy("tiny-transformer-base")
    fuse_backward(fused)
    assert not any(isinstance(module, FusedCrossAttention) for module in fused.modules())
    check_equal(gradients_of(fused), gradients_of(make_copy("tiny-transformer-base")))


def test_in_fp8_it_equals_the_fp8_layers(monkeypatch, calls):
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 1)
    plain, fused = (make_copy("tiny-transformer-base") for _ in range(2))
    for model in (plain, fused):
        use_float8(model)
    fuse_backward(fused)
    check_equal(gradients_of(fused, real=REAL), gradients_of(plain, real=REAL), bound=1e-3)
    assert calls


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("in_float8", [False, True])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-transformer-base"])
def test_compiled_layers_give_the_same_gradients(monkeypatch, name, in_float8):
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 1)
    models = [make_copy(name) for _ in range(2)]
    for model in models:
        if in_float8:
            use_float8(model)
        fuse_backward(model)
    for layer in models[1].decoder.layers:
        layer.compile(backend="aot_eager")
    right, found = (gradients_of(model, real=REAL) for model in models)
    check_equal(found, right, bound=1e-3)


@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_many_lengths_are_compiled_at_most_twice():
    n_compilations = 0

    def count(graph, example_inputs):
        nonlocal n_compilations
        n_compilations += 1
        return graph.forward

    torch._dynamo.reset()
    plain, fused = (make_copy("tiny-transformer-base") for _ in range(2))
    fuse_backward(fused)
    fuse_norms(fused)  # as in a run: one operation with a constant length would compile every length
    fused.decoder.layers[0].compile(backend=count)
    for n_source, n_target in ((12, 9), (11, 8), (10, 12), (7, 4)):
        for model in (plain, fused):
            model.zero_grad()
        given = {"tokens": TOKENS[:, :n_source], "real": REAL[:, :n_source], "target": TOKENS[:, :n_target]}
        check_equal(gradients_of(fused, **given), gradients_of(plain, **given))
    assert n_compilations <= 2
    torch._dynamo.reset()
