"""Document 000: attention, positions and its own test."""

import pytest
import torch

from documents.formulas import KEYS_MASK, random_heads, softmax_attention
from glassformer.documents import document_000


def test_attention_returns_only_the_output():
    attention = document_000.MultiHeadAttention(16, 4)
    q, k, v = random_heads()
    expected, _ = softmax_attention(q, k, v, KEYS_MASK)
    torch.testing.assert_close(attention.scaled_dot_product_attention(q, k, v, KEYS_MASK), expected)
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    q, k, v = attention.project(x, y, y)
    expected, _ = softmax_attention(q, k, v, KEYS_MASK)
    torch.testing.assert_close(
        attention(x, y, y, KEYS_MASK),
        attention.merge(expected),
        # The model is in training mode, but this attention has no dropout.
    )


def test_the_position_table_equals_the_documents():
    encoding = document_000.PositionalEncoding(6, 0.0, 9)
    assert encoding.pe.shape == (1, 9, 6)
    torch.testing.assert_close(encoding.pe[0, :, 2], (torch.arange(9) * 10000 ** (-2 / 6)).sin())
    torch.testing.assert_close(encoding(torch.zeros(1, 9, 6)), encoding.pe)
    assert not encoding.state_dict()


def test_test_transformer_prints_six_checks_and_raises_if_one_fails(capsys, monkeypatch):
    document_000.test_transformer()
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(".")[0] for line in printed] == list("123456")
    assert printed[-1].endswith("14,866,532")
    monkeypatch.setattr(document_000.MultiHeadAttention, "forward", lambda self, Q, K, V: Q[:, :3])  # noqa: N803
    with pytest.raises(AssertionError, match=r"2\. MultiHeadAttention failed: \(2, 10, 512\) -> \(2, 3, 512\)"):
        document_000.test_transformer()
