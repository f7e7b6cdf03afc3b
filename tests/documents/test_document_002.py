"""Document 002: pre-norm layers with ReLU."""

import torch

from documents.formulas import KEYS_MASK, softmax_attention
from glassformer.documents import document_002


def test_layers_are_pre_norm_with_relu():
    x, y, keep = torch.randn(2, 5, 16), torch.randn(2, 7, 16), KEYS_MASK
    layer = document_002.DecoderBlock(16, 4, 20, 0.1).eval()
    inner = layer.layer
    expected = x
    for sublayer, step in (
        (inner.self_attn_sublayer, lambda h: inner.self_attn.merge(softmax_attention(*inner.self_attn.project(h))[0])),
        (
            inner.cross_attn_sublayer,
            lambda h: inner.cross_attn.merge(softmax_attention(*inner.cross_attn.project(h, y), keep)[0]),
        ),
        (inner.ffn_sublayer, lambda h: inner.ffn.down_proj(inner.ffn.up_proj(h).relu())),
    ):
        normal = (expected - expected.mean(-1, keepdim=True)) / (expected.std(-1, keepdim=True) + 1e-6)
        expected = expected + step(sublayer.norm.weight * normal + sublayer.norm.bias)
    torch.testing.assert_close(layer(x, y, keep, None), expected)
    memory = document_002.Encoder(16, 2, 4, 20, 0.1)(y, keep)
    assert document_002.Decoder(16, 2, 4, 20, 0.1)(x, memory, keep, None).shape == x.shape
