"""Norms and added ratios are those of the recorded activations; biases and masks belong to their layers."""

import pytest
import torch

from glassformer.inspect.pipeline_text import ModelText, SideTokens
from glassformer.inspect.recorder import record
from glassformer.inspect.stack_numbers import describe_stacks, record_text, roll_out
from glassformer.models import preset
from oracle import random_model
from pipelines.tiny_pipelines import tokenizer

IDS = [5, 6, 7, 8, 6]


def read(name):
    """Return some tokens for a random model of this preset."""
    model, own = random_model(preset(name), dtype=torch.float32), tokenizer()
    side = SideTokens(IDS, own, "", [None] * len(IDS))
    return ModelText(model, side, None if model.kind == "encoder" else SideTokens(IDS, own, "", [None] * len(IDS)))


@pytest.mark.parametrize("name", ["tiny-transformer-base", "tiny-llama"])
def test_norms_and_ratios(name):
    text = read(name)
    with torch.no_grad(), record(text.model, "*") as recorded:
        text.model(**text.inputs())
        stacks = describe_stacks(text, record_text(text))
    for stack in stacks:
        for layer in stack["layers"]:
            owner = layer["name"]
            before = recorded[f"{owner}.resid.in"][0]
            assert layer["residual"]["in"] == pytest.approx(before.norm(dim=-1).tolist(), rel=1e-5)
            ratio = recorded[f"{owner}.self_attn.out"][0].norm(dim=-1) / before.norm(dim=-1)
            assert layer["added"]["self_attention"] == pytest.approx(ratio.tolist(), rel=1e-5)
            before = recorded[f"{owner}.resid.{'mid' if layer['residual']['cross'] is None else 'cross'}"][0]
            ratio = recorded[f"{owner}.ffn.out"][0].norm(dim=-1) / before.norm(dim=-1)
            assert layer["added"]["feedforward"] == pytest.approx(ratio.tolist(), rel=1e-5)


@pytest.mark.parametrize("name", ["tiny-t5-small", "tiny-albert-base", "tiny-deberta-v3-base"])
def test_terms_give_the_weights_again(name):
    text = read(name)
    with torch.no_grad():
        run = record_text(text)
    for owner, (bias, allowed) in run.terms.items():
        q, k = run.activations[f"{owner}.q"][0], run.activations[f"{owner}.k"][0]
        scale = text.model.get_submodule(
            owner.replace("layers.1", "layers.0") if "albert" in name else owner
        ).attend.scale
        scores = q @ k.transpose(-2, -1) * scale + (0 if bias is None else bias)
        scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
        torch.testing.assert_close(scores.softmax(-1), run.activations[f"{owner}.weights"][0], atol=1e-5, rtol=1e-4)
    assert len(run.terms) == len([key for key in run.activations if key.endswith(".weights")])
    rolled = roll_out(text, run)
    assert rolled["encoder"].shape == (5, 5)
    assert not any(module._forward_hooks for module in text.model.modules())
