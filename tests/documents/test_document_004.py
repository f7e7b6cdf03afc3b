"""Document 004: the NumPy encoder."""

import math

import numpy as np
import pytest

from glassformer.documents import document_004


def test_tokens_become_vectors():
    tokens = document_004.simple_tokenizer("Hello Transformer world hello")
    vocab = {"hello": 0, "transformer": 1, "world": 2}
    np.random.seed(3)
    table = document_004.create_embeddings(3, 8)
    np.random.seed(3)
    assert np.array_equal(table, np.random.randn(3, 8) * 0.01)
    assert np.array_equal(document_004.get_token_embeddings(tokens, vocab, table), table[[0, 1, 2, 0]])
    with pytest.raises(KeyError, match="token 'moon' is not in the vocabulary"):
        document_004.get_token_embeddings(["moon"], vocab, table)
    encoding = document_004.positional_encoding(4, 5)
    assert encoding.shape == (4, 5)
    assert encoding[3, 4] == pytest.approx(math.sin(3 / 10000 ** (4 / 5)))


def test_softmax_subtracts_the_maximum_of_each_row():
    """Subtracting the maximum of the whole matrix would make the second row 0/0."""
    rows = document_004.softmax(np.array([[1000.0, 999.0], [-1000.0, -1000.0]]))
    assert rows == pytest.approx(np.array([[1 / (1 + math.exp(-1)), 1 / (1 + math.e)], [0.5, 0.5]]))
    assert document_004.softmax([0.0, 0.0]) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_equal_their_formulas(dtype):
    chance = np.random.default_rng(0)
    x, w1, w2 = (chance.standard_normal(shape).astype(dtype) for shape in ((2, 5, 4), (4, 8), (8, 4)))
    b1, b2 = (chance.standard_normal(size).astype(dtype) for size in (8, 4))
    hidden = np.maximum(x @ w1 + b1, 0)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    for found, expected in (
        (document_004.relu(x), np.maximum(x, 0)),
        (document_004.feed_forward(x, w1, b1, w2, b2), hidden @ w2 + b2),
        (document_004.feed_forward_with_residual(x, w1, b1, w2, b2), hidden @ w2 + b2 + x),
        (document_004.layer_norm(x), (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)),
        (document_004.split_heads(x, 2)[1, 1, 3], x[1, 3, 2:]),
        (document_004.combine_heads(document_004.split_heads(x, 2)), x),
    ):
        np.testing.assert_allclose(found, expected, **tolerance)
        assert found.dtype == dtype


def test_the_encoder_layer_equals_the_documents_functions():
    np.random.seed(0)
    layer = document_004.EncoderLayer(8, 2, 12)
    x = np.random.randn(2, 5, 8)
    weights, ffn = layer.mha.params, layer.ffn.params
    q, k, v = (
        document_004.split_heads(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"], 2)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    mixed = document_004.combine_heads(document_004.softmax(q @ k.swapaxes(-1, -2) / 2) @ v)
    attended = mixed @ weights["out_proj.weight"].T + weights["out_proj.bias"]
    np.testing.assert_allclose(layer.mha.forward(x, x, x), attended)
    out = document_004.layer_norm(x + attended)
    matrices = (ffn["up_proj.weight"].T, ffn["up_proj.bias"], ffn["down_proj.weight"].T, ffn["down_proj.bias"])
    expected = document_004.layer_norm(document_004.feed_forward_with_residual(out, *matrices))
    np.testing.assert_allclose(layer.forward(x), expected)


def test_attention_takes_keys_and_values_separately():
    np.random.seed(0)
    attention = document_004.MultiHeadAttention(8, 2)
    query, key, value = np.random.randn(3, 1, 4, 8)
    assert not np.allclose(attention.forward(query, key, value), attention.forward(query, key, key))
    assert attention.forward(query[:, :2], key, value).shape == (1, 2, 8)
    with pytest.raises(ValueError, match=r"key has shape \(4, 8\): expected \(batch, length, 8\)"):
        attention.forward(query, key[0], value)
    with pytest.raises(ValueError, match="num_heads=3: expected a divisor of model_dim=8"):
        document_004.MultiHeadAttention(8, 3)


def test_encoder_layers_have_their_own_weights_and_follow_the_seed():
    x = np.random.default_rng(0).standard_normal((1, 4, 8))
    results = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        encoder = document_004.TransformerEncoder(2, 8, 2, 12)
        results.append(encoder.forward(x))
    first, second = (layer.mha.params["q_proj.weight"] for layer in encoder.layers)
    assert not np.allclose(first, second)
    assert np.array_equal(results[0], results[1])
    assert not np.allclose(results[0], results[2])
    np.testing.assert_allclose(results[2], encoder.layers[1].forward(encoder.layers[0].forward(x)))
