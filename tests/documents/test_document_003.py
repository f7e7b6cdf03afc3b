"""Document 003: attention that returns its weights, and pictures."""

import sys

import pytest
import torch

from documents.formulas import KEYS_MASK, random_heads, softmax_attention
from glassformer.documents import document_003


def test_attention_returns_the_output_and_the_weights_of_a_batch_of_two():
    """If only the output were returned, `out, w = mha(q, k, v)` would unpack the batch of two sentences."""
    attention = document_003.MultiHeadAttention(16, 4).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    out, w = attention(x, y, y, KEYS_MASK)
    expected, weights = softmax_attention(*attention.project(x, y, y), KEYS_MASK)
    torch.testing.assert_close(out, attention.merge(expected))
    torch.testing.assert_close(w, weights)
    assert (out.shape, w.shape) == ((2, 5, 16), (2, 4, 5, 7))
    assert isinstance(attention(x, x, x), tuple)


def test_attention_splits_and_merges_heads():
    attention = document_003.MultiHeadAttention(16, 4).eval()
    x = torch.randn(2, 5, 16)
    heads = attention.split_heads(x)
    assert torch.equal(heads[1, 2, 3], x[1, 3, 8:12])
    assert torch.equal(attention.merge_heads(heads), x)
    q, k, v = random_heads()
    for found, expected in zip(
        attention.scaled_dot_product_attention(q, k, v, KEYS_MASK), softmax_attention(q, k, v, KEYS_MASK), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_returned_weights_include_dropout_in_training():
    attention = document_003.MultiHeadAttention(16, 4, dropout=0.5)
    q, k, v = random_heads()
    context, weights = attention.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(context, weights @ v)
    assert (weights == 0).float().mean() > 0.2


def test_pictures_have_the_documents_file_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert document_003.visualize_positional_encoding() is None
    weights = torch.rand(2, 4, 3, 3, requires_grad=True)
    assert document_003.visualize_attention(weights, ["a", "$b$", "c"]) is None
    names = ["positional_encoding.png", "self_attention_visualization.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    with pytest.raises(ValueError, match=r"shape \(2, 4, 3, 3\): expected \(batch, heads, 2, 2\)"):
        document_003.visualize_attention(weights, ["a", "b"])


def test_pictures_without_matplotlib_name_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'glassformer\[plot\]'"):
        document_003.visualize_positional_encoding()
