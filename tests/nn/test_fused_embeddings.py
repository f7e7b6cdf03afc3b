"""Embeddings by one kernel equal the module, which is called wherever the kernel is not for it."""

import pytest
import torch
from torch import nn
from typing_extensions import override

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn import Embeddings, LearnedPositions, SinusoidalPositions
from glassformer.nn.fused_embeddings import embed
from glassformer.nn.groupwise_linear import GroupwiseEmbedding, quantized_linear

TOKENS = torch.tensor([[3, 1, 2], [0, 4, 4]])


class Looking(KernelSet):
    """Plain kernels that count the embeddings that they compute."""

    def __init__(self):
        self.n_calls = 0

    @override
    def can_embed(self, tokens, table):
        return not torch.is_grad_enabled()

    @override
    def embed(self, tokens, table, scale, positions, position_table):
        self.n_calls += 1
        return super().embed(tokens, table, scale, positions, position_table)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": True},
        {"multiplier": 0.3, "positions": LearnedPositions(9, 4, offset=2)},
        {"scale": True, "positions": SinusoidalPositions(9, 4, halves=True, offset=1)},
        {"positions": LearnedPositions(9, 4), "norm": nn.LayerNorm(4), "projection": nn.Linear(4, 6)},
    ],
)
@pytest.mark.parametrize("places", [torch.tensor([[2, 5, 7]]), torch.tensor([[0, 1, 2], [6, 7, 8]])])
def test_one_kernel_computes_what_the_module_does(options, places):
    embeddings, kernels = Embeddings(5, 4, dropout=0.5, **options).eval(), Looking()
    with torch.no_grad():
        assert torch.equal(embed(embeddings, TOKENS, places, kernels), embeddings(TOKENS, places))
    assert kernels.n_calls == 1


class Doubled(nn.Embedding):
    @override
    def forward(self, ids):
        return 2 * super().forward(ids)


def with_types():
    return Embeddings(5, 4, n_token_types=2)


def with_another_table():
    embeddings = Embeddings(5, 4)
    embeddings.tokens = Doubled(5, 4)
    return embeddings


def with_a_quantized_table():
    embeddings = Embeddings(5, 32)
    embeddings.tokens = GroupwiseEmbedding(quantized_linear(nn.Linear(32, 5), 8).matrix)
    return embeddings


def with_a_hook():
    embeddings = Embeddings(5, 4, positions=LearnedPositions(9, 4))
    embeddings.tokens.register_forward_hook(lambda module, inputs, result: result + 1)
    return embeddings


@pytest.mark.parametrize("make", [with_types, with_another_table, with_a_quantized_table, with_a_hook])
def test_other_embeddings_are_called(make):
    embeddings, kernels = make().eval(), Looking()
    places = torch.arange(3)[None]
    with torch.no_grad():
        assert torch.equal(embed(embeddings, TOKENS, places, kernels), embeddings(TOKENS, places))
        assert torch.equal(embed(embeddings, TOKENS, places, None), embeddings(TOKENS, places))
    assert kernels.n_calls == 0


def test_embeddings_are_called_when_they_drop_numbers_or_need_gradients():
    embeddings, kernels, places = Embeddings(5, 4, dropout=0.5), Looking(), torch.arange(3)[None]
    with torch.no_grad():
        embed(embeddings.train(), TOKENS, places, kernels)
    assert embed(embeddings.eval(), TOKENS, places, kernels).requires_grad
    assert kernels.n_calls == 0
