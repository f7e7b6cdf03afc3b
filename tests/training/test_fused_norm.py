"""Norms with a fused gradient compute what plain norms compute, in plain torch on a CPU."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.fused_norm import FusedLayerNorm, FusedRMSNorm, FusedSublayer, fuse_norms

TOKENS = torch.arange(24).view(2, 12) % 7
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}


def make_copy(name, **changes):
    torch.manual_seed(0)
    model = build_model(preset(name, vocab_size=61, **(NO_DROPOUT | changes)))
    return ComputeCopy(model, torch.float32).module.train()


def loss_and_gradients(model, seed=1):
    torch.manual_seed(seed)
    outputs = model(TOKENS, TOKENS) if model.kind == "encoder_decoder" else model(TOKENS)
    loss = outputs[..., :61].square().sum()
    model.zero_grad()
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def check_equal(found, right):
    torch.testing.assert_close(found[0], right[0], atol=1e-4, rtol=1e-4)
    assert list(found[1]) == list(right[1])
    for name, gradient in found[1].items():
        torch.testing.assert_close(gradient, right[1][name], atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(
    ("name", "n_norms"), [("tiny-gpt2", 5), ("tiny-transformer-base", 10), ("tiny-llama", 5), ("tiny-bert-base", 4)]
)
def test_losses_and_gradients_are_those_of_plain_norms(name, n_norms, is_compiled):
    plain, fused = make_copy(name), make_copy(name)
    assert fuse_norms(fused) == n_norms
    if is_compiled:
        for stack in fused.children():
            for layer in getattr(stack, "layers", ()):
                layer.compile(backend="aot_eager")
    check_equal(loss_and_gradients(fused), loss_and_gradients(plain))


def test_the_classes_say_which_norms_are_fused():
    kinds = [{type(module) for module in _fused(name).modules()} for name in ("tiny-gpt2", "tiny-llama")]
    assert FusedSublayer in kinds[0] & kinds[1]
    assert FusedLayerNorm in kinds[0]
    assert FusedRMSNorm in kinds[1]


def _fused(name):
    model = make_copy(name)
    fuse_norms(model)
    return model


def test_norms_of_other_kinds_stay_as_they_are():
    for changes in ({"norm": "mean_std"}, {"norm_placement": "output"}, {"norm_placement": "sandwich"}):
        model = make_copy("tiny-llama", **changes)
        fuse_norms(model)
        assert not any(isinstance(module, FusedSublayer) for module in model.modules())
        check_equal(loss_and_gradients(model), loss_and_gradients(make_copy("tiny-llama", **changes)))


def test_a_multiplier_and_norms_without_bias_are_kept():
    for name in ("tiny-gpt2", "tiny-transformer-base"):
        changes = {"norm_bias": False, "residual_multiplier": 0.5}
        plain, fused = make_copy(name, **changes), make_copy(name, **changes)
        assert fuse_norms(fused)
        check_equal(loss_and_gradients(fused), loss_and_gradients(plain))


def test_dropout_follows_torch_s_seed_and_stops_in_evaluation():
    model = _fused("tiny-transformer-base")
    without = loss_and_gradients(model)[0]
    for module in model.modules():
        if isinstance(module, FusedSublayer):
            module.dropout.p = 0.5
    losses = [loss_and_gradients(model, seed)[0].item() for seed in (1, 1, 2)]
    assert losses[0] == losses[1]
    assert len({*losses, without.item()}) == 3
    model.eval()
    torch.testing.assert_close(loss_and_gradients(model)[0], without)
