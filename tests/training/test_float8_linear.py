"""Layers in fp8 compute what plain layers compute, up to the rounding of fp8; here simulated on a CPU."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from glassformer.models import build_model, preset
from glassformer.runtime.packed_model import PaddedLinear
from glassformer.tasks.seq2seq_task import pair_loss
from glassformer.training import float8_linear, trainer
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.float8_linear import Float8Linear, Float8Output, has_float8, use_float8
from glassformer.training.output_loss import replaced_logits_loss
from training.tiny_trainer import CONFIG, make_trainer


def similarity(a, b):
    return torch.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0).item()


@pytest.mark.parametrize("bias", [False, True])
def test_output_and_gradients_are_close_to_those_of_the_plain_layer(bias):
    torch.manual_seed(0)
    plain = nn.Linear(64, 48, bias=bias)
    layer = Float8Linear(plain)
    x, upstream = torch.randn(2, 7, 64, requires_grad=True), torch.randn(2, 7, 48)
    right, found = plain(x), layer(x)
    assert found.shape == right.shape
    assert similarity(found, right) > 0.998
    assert not torch.equal(found, right)
    learned = [x, *plain.parameters()]
    expected, gradients = (torch.autograd.grad(y, learned, upstream) for y in (right, found))
    assert similarity(gradients[0], expected[0]) > 0.998
    for own, other in zip(gradients[1:], expected[1:], strict=True):
        torch.testing.assert_close(own, other)


def test_only_large_aligned_layers_and_the_output_layer_are_in_fp8(monkeypatch):
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 65 * 64)
    model = build_model(preset("tiny-gpt2", vocab_size=70, d_model=64, d_ff=128, n_heads=4))
    copied = ComputeCopy(model, torch.float32)
    before = [id(parameter) for parameter in copied.module.parameters()]
    assert use_float8(copied.module) == 3 * len(model.decoder.layers) + 1
    layer = copied.module.decoder.layers[0]
    assert isinstance(layer.self_attn.qkv_proj, Float8Linear)
    assert isinstance(layer.ffn.up_proj, Float8Linear)
    assert type(layer.self_attn.out_proj) is nn.Linear
    assert isinstance(copied.module.head.out_proj, Float8Output)
    assert sorted(before) == sorted(id(parameter) for parameter in copied.module.parameters())
    tokens = torch.randint(70, (2, 5))
    assert similarity(copied.module.eval()(tokens), model.eval()(tokens)) > 0.99
    assert not float8_linear.is_worthwhile(torch.zeros(1000, 65))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_an_output_layer_in_fp8_is_close_to_the_plain_one(smoothing):
    torch.manual_seed(0)
    layer = PaddedLinear(nn.Linear(32, 90)).requires_grad_()
    hidden, targets = torch.randn(40, 32, requires_grad=True), torch.randint(90, (40,))
    learned = [hidden, *layer.parameters()]
    losses = [
        replaced_logits_loss(hidden, one, targets, smoothing=smoothing, ignored=3)
        for one in (layer, Float8Output(layer))
    ]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.01, atol=0.0)
    gradients = [torch.autograd.grad(loss * 0.5, learned) for loss in losses]
    for own, right in zip(*gradients, strict=True):
        assert similarity(own, right) > 0.99
        assert own.norm().item() == pytest.approx(right.norm().item(), rel=0.02)


def test_a_device_without_fp8_is_refused(tmp_path):
    assert not has_float8(torch.device("cpu"))
    with pytest.raises(ValueError, match=r"precision='fp8' on cpu: expected an NVIDIA GPU .*; or bf16"):
        make_trainer(tmp_path, replace(CONFIG, precision="fp8"))


def test_a_run_whose_gradients_the_model_itself_computes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "choose_precision", lambda *arguments: "fp32")
    with pytest.raises(ValueError, match=r"precision='fp8' with adapters.*: expected 'bf16'"):
        make_trainer(tmp_path, replace(CONFIG, precision="fp8"))


def test_a_copy_trains_in_fp8_and_a_model_of_small_layers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "choose_precision", lambda *arguments: "fp32")
    config = replace(CONFIG, precision="fp8", compile="on")
    options = {"loss_of": lambda model: partial(pair_loss, model, config)}
    with pytest.raises(ValueError, match="no layer of this model is large enough to gain"):
        make_trainer(tmp_path, config, **options)
    monkeypatch.setattr(float8_linear, "MIN_WEIGHTS", 1)
    losses = []
    one = make_trainer(tmp_path, config, on_update=lambda update: losses.append(update.loss), **options)
    assert any(isinstance(module, Float8Linear) for module in one.setup.copy.module.modules())
    one.run()
    assert losses[-1] < losses[0]
