"""Fused embeddings have the gradients of plain ones, with tied and padded tables, eagerly and compiled."""

import pytest
import torch
from torch import nn

from glassformer.models import build_model, preset
from glassformer.training.compute_copy import ComputeCopy
from glassformer.training.fused_embedding import FusedEmbedding, fuse_embeddings

TOKENS = torch.arange(24).view(2, 12) % 7


def gradients_of(model):
    torch.manual_seed(1)  # of dropout
    outputs = model(TOKENS, TOKENS) if model.kind == "encoder_decoder" else model(TOKENS)
    outputs[..., :61].square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("name", "changes", "n_tables"),
    [
        ("tiny-gpt2", {}, 1),  # tied with the output layer, and padded
        ("tiny-llama", {}, 1),
        ("tiny-transformer-base", {}, 1),  # source and target share one table
        ("tiny-transformer-base", {"tie": "none"}, 2),
    ],
)
def test_gradients_are_those_of_the_plain_tables(name, changes, n_tables, compiled):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = build_model(preset(name, vocab_size=61, **{"dropout": 0.0, **changes}))
        models.append(ComputeCopy(model, torch.float32).module.train())
    plain, fused = models
    assert fuse_embeddings(fused) == n_tables
    if compiled:
        for module in fused.modules():
            if isinstance(module, FusedEmbedding):
                module.compile(backend="aot_eager")
    right, found = gradients_of(plain), gradients_of(fused)
    assert list(right) == list(found)
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, right[key], atol=1e-4, rtol=1e-4)


def test_a_frozen_table_gets_no_gradient():
    model = build_model(preset("tiny-llama", vocab_size=61)).train()
    model.embeddings.tokens.weight.requires_grad_(False)
    assert fuse_embeddings(model) == 1
    assert gradients_of(model)["embeddings.tokens.weight"] is None


def test_tables_of_another_kind_stay_as_they_are():
    model = build_model(preset("tiny-llama", vocab_size=61))
    model.embeddings.tokens = nn.Embedding(61, 16, padding_idx=0)
    assert fuse_embeddings(model) == 0
    assert type(model.embeddings.tokens) is nn.Embedding
