"""A copy with fused weights computes the gradients of the model."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.nn import Dropout
from glassformer.training.compute_copy import ComputeCopy, can_copy

KINDS = {
    "tiny-transformer-base": {},
    "tiny-llama": {},
    "tiny-gpt2": {},
    "tiny-bert-base": {"head": "language_model"},
}


def make(name, changes):
    torch.manual_seed(0)
    return build_model(preset(name, vocab_size=61, dropout=0.0, **changes)).double().float().eval()


def loss_of(model, tokens):
    outputs = model(tokens, tokens) if model.kind == "encoder_decoder" else model(tokens)
    return outputs[..., :61].square().sum()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("early", [False, True])
def test_the_gradients_of_the_copy_are_those_of_the_model(name, early):
    model, tokens = make(name, KINDS[name]), torch.randint(1, 61, (2, 5))
    loss_of(model, tokens).backward()
    right = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    copied = ComputeCopy(model, torch.float32)
    names = [name for name, _ in copied.module.named_parameters()]
    assert any("qkv_proj" in name for name in names)
    for add in (False, True):  # the second time on top of the first
        if early:
            with copied.pushing(add=add):
                loss_of(copied.module, tokens).backward()
        else:
            loss_of(copied.module, tokens).backward()
            copied.push(add=add)
        for key, parameter in model.named_parameters():
            if key in right:
                expected = right[key] * (2 if add else 1)
                torch.testing.assert_close(parameter.grad, expected, atol=1e-4, rtol=1e-4)
        assert all(parameter.grad is None for parameter in copied.learned)


def test_pull_copies_changed_parameters_in_the_dtype_of_the_copy():
    model, tokens = make("tiny-gpt2", {}), torch.randint(1, 61, (2, 5))
    copied = ComputeCopy(model, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    assert not torch.allclose(copied.module(tokens), model(tokens))
    copied.pull()
    torch.testing.assert_close(copied.module(tokens), model(tokens))
    assert next(ComputeCopy(model, torch.bfloat16).module.parameters()).dtype == torch.bfloat16


def test_the_vocabulary_of_the_copy_is_padded_and_the_padding_is_not_seen():
    copied = ComputeCopy(make("tiny-gpt2", {}), torch.float32)
    assert len(copied.module.head.out_proj.weight) == 64
    assert copied.module.embeddings.tokens.weight is copied.module.head.out_proj.weight
    assert copied.module(torch.ones(1, 2, dtype=torch.long)).shape == (1, 2, 61)


def test_models_with_hooks_or_other_dtypes_are_not_copied():
    model = make("tiny-gpt2", {})
    assert can_copy(model)
    assert not can_copy(torch.nn.Linear(2, 2))
    handle = model.decoder.register_forward_hook(lambda *arguments: None)
    assert not can_copy(model)
    handle.remove()
    assert not can_copy(model.double())


def test_dropout_in_a_fused_gated_feed_forward_is_applied():
    model = make("tiny-llama", {"activation_dropout": 0.5})
    copied = ComputeCopy(model, torch.float32).module.train()
    assert any(isinstance(module, Dropout) and module.p == 0.5 for module in copied.modules())
    tokens = torch.randint(1, 61, (2, 5))
    assert not torch.equal(copied(tokens), copied(tokens))
