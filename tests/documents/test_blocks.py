"""The documents' blocks take the documents' arguments and compute their formulas."""

import pytest
import torch

import glassformer
from documents.formulas import (
    waves,
)


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: glassformer.PositionalEncoding(16, dropout=0.0),
        lambda: glassformer.PositionalEncoding(16, 0.0),
        lambda: glassformer.PositionalEncoding(16, 0.0, max_len=5000),
        lambda: glassformer.PositionalEncoding(16, 5000, 0.0),
        lambda: glassformer.PositionalEncoding(16, max_seq_length=5000, dropout=0.0),
    ],
)
def test_positional_encoding_takes_the_arguments_of_every_document(arguments):
    encoding = arguments()
    assert encoding.max_len == 5000
    x = torch.randn(2, 6, 16)
    torch.testing.assert_close(encoding(x), x + waves(6, 16), atol=1e-6, rtol=1e-6)


def test_blocks_take_the_documents_arguments():
    q = torch.randn(2, 5, 16)
    mask = torch.ones(2, 1, 1, 5)
    mask[0, ..., 3:] = 0
    attention_block = glassformer.MultiHeadAttention(16, 4).eval()
    output, weights = attention_block(q, q, q, mask, need_weights=True)
    torch.testing.assert_close(attention_block(q, q, q, mask), output)
    assert weights.shape == (2, 4, 5, 5)
    assert not weights[0, ..., 3:].any()
    assert glassformer.FeedForward(16)(q).shape == q.shape
    assert glassformer.FeedForwardBlock(16, 8, 0.1)(q).shape == q.shape
    assert glassformer.PositionWiseFeedForward(16, 8)(q).shape == q.shape
    memory = glassformer.EncoderLayer(16, 4)(q)
    assert glassformer.DecoderLayer(16, 4)(q, memory, mask, torch.ones(5, 5).tril().expand(2, 1, 5, 5)).shape == q.shape
    memory = glassformer.Encoder(16, 4, 20, 2)(q, mask)
    assert glassformer.Decoder(16, 4, 20, 2)(q, memory, mask).shape == q.shape
    assert glassformer.EncoderBlock(16, 4, 20)(q, mask).shape == q.shape
    assert glassformer.DecoderBlock(16, 4, 20)(q, memory, mask).shape == q.shape
    assert glassformer.ProjectionLayer(16, 7)(q).shape == (2, 5, 7)
    table = glassformer.TokenEmbedding(9, 16)
    torch.testing.assert_close(table(torch.tensor([[3]]))[0, 0], table.embeddings.tokens.weight[3] * 4)
    assert glassformer.InputEmbedding(16, 9)(torch.tensor([[3]])).shape == (1, 1, 16)
    norm = glassformer.LayerNormalization(16)
    x = q * 3 + 1
    expected = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(norm(x), expected)
    residual = glassformer.ResidualConnection(16).eval()
    torch.testing.assert_close(residual(x, torch.sin), x + expected.sin())
