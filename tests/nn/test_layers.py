"""A layer: the residual connection around each part, and cross-attention only with a memory."""

import pytest
import torch
from torch import nn

from glassformer.nn import FeedForward, Layer, MultiHeadAttention, Sublayer


def make_layer(*, cross):
    def sublayer():
        return Sublayer(nn.LayerNorm(8), placement="pre")

    cross_attn = MultiHeadAttention(8, 2) if cross else None
    return Layer(MultiHeadAttention(8, 2), FeedForward(8, 16), cross_attn=cross_attn, sublayer=sublayer).eval()


def test_the_norm_is_inside_or_outside_the_residual_connection():
    x, norm = torch.randn(2, 3, 8), nn.LayerNorm(8)

    def double(y):
        return 2 * y

    torch.testing.assert_close(Sublayer(norm, placement="pre")(x, double), x + 2 * norm(x))
    torch.testing.assert_close(Sublayer(norm, placement="post")(x, double), norm(3 * x))
    torch.testing.assert_close(Sublayer(norm, placement="output")(x, double), x + norm(2 * x))
    sandwich = Sublayer(norm, placement="sandwich", post_norm=nn.RMSNorm(8))
    torch.testing.assert_close(sandwich(x, double), x + sandwich.post_norm(2 * norm(x)))
    with pytest.raises(ValueError, match="post_norm with norm_placement='pre': expected it with 'sandwich' only"):
        Sublayer(norm, placement="pre", post_norm=norm)


def test_a_layer_applies_self_attention_cross_attention_and_feed_forward_in_order():
    layer, x, memory = make_layer(cross=True), torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    norms = layer.self_attn_sublayer.norm, layer.cross_attn_sublayer.norm, layer.ffn_sublayer.norm
    expected = x + layer.self_attn(norms[0](x))
    expected = expected + layer.cross_attn(norms[1](expected), memory)
    expected = expected + layer.ffn(norms[2](expected))
    torch.testing.assert_close(layer(x, memory=memory), expected)


@pytest.mark.parametrize("parallel", ["two_norms", "one_norm"])
def test_a_parallel_layer_adds_both_parts_to_its_input(parallel):
    def sublayer():
        return Sublayer(nn.LayerNorm(8), placement="pre", multiplier=0.5)

    layer = Layer(MultiHeadAttention(8, 2), FeedForward(8, 16), sublayer=sublayer, parallel=parallel).eval()
    x, norm = torch.randn(2, 3, 8), layer.self_attn_sublayer.norm
    other = norm if parallel == "one_norm" else layer.ffn_sublayer.norm
    with torch.no_grad():
        norm.weight.normal_()
    torch.testing.assert_close(layer(x), x + 0.5 * layer.self_attn(norm(x)) + 0.5 * layer.ffn(other(x)))
    assert len(list(layer.ffn_sublayer.parameters())) == (0 if parallel == "one_norm" else 2)


def test_a_memory_is_required_by_cross_attention_and_refused_without_it():
    x = torch.randn(1, 2, 8)
    with pytest.raises(ValueError, match="memory is missing: expected the encoder's output"):
        make_layer(cross=True)(x)
    with pytest.raises(ValueError, match="memory was given: expected none"):
        make_layer(cross=False)(x, memory=x)
