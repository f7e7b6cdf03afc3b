"""Each document's module has the document's names, with its signatures, return values and arithmetic."""

import inspect
import math
import sys

import numpy as np
import pytest
import torch

from glassformer.documents import document_000, document_001, document_002, document_003, document_004

MODULES = {"000": document_000, "001": document_001, "002": document_002, "003": document_003, "004": document_004}
SIGNATURES_000 = {
    "PositionalEncoding": "d_model, dropout, max_len=5000",
    "MultiHeadAttention": "d_model, num_heads",
    "MultiHeadAttention.scaled_dot_product_attention": "self, Q, K, V, mask=None",
    "MultiHeadAttention.forward": "self, Q, K, V, mask=None",
    "FeedForward": "d_model, d_ff=2048",
    "EncoderLayer": "d_model, num_heads",
    "EncoderLayer.forward": "self, x, mask=None",
    "DecoderLayer": "d_model, num_heads",
    "DecoderLayer.forward": "self, x, enc_output, src_mask, tgt_mask",
    "Transformer": "src_vocab_size, tgt_vocab_size, d_model=512, num_heads=8, num_layers=6",
    "Transformer.forward": "self, src, tgt, src_mask=None, tgt_mask=None",
    "test_transformer": "",
}
STACK = "d_model, num_heads, d_ff, num_layers, dropout=0.1, max_seq_len=5000"
SIZES = "d_model=768, num_heads=12, d_ff=3072, num_layers=12, dropout=0.1"
SIGNATURES = {
    "000": SIGNATURES_000,
    "001": SIGNATURES_000,
    "002": {
        "InputEmbedding": "d_model, vocab_size",
        "InputEmbedding.forward": "self, x",
        "PositionalEncoding": "d_model, seq_len, dropout",
        "FeedForwardBlock": "d_model, d_ff, dropout",
        "FeedForwardBlock.forward": "self, x",
        "EncoderLayer.forward": "self, x, src_mask",
        "DecoderBlock.forward": "self, x, encoder_output, src_mask, tgt_mask",
        "ProjectionLayer": "d_model, vocab_size",
        "build_transformer": "src_vocab_size, tgt_vocab_size, src_seq_len, tgt_seq_len, "
        "d_model=512, N=6, h=8, dropout=0.1, d_ff=2048",
    },
    "003": {
        "TokenEmbedding": "vocab_size, embedding_dim",
        "PositionalEncoding": "d_model, max_seq_length=5000, dropout=0.1",
        "MultiHeadAttention": "d_model, num_heads, dropout=0.1",
        "MultiHeadAttention.split_heads": "self, x",
        "MultiHeadAttention.merge_heads": "self, x",
        "MultiHeadAttention.scaled_dot_product_attention": "self, Q, K, V, mask=None",
        "MultiHeadAttention.forward": "self, query, key, value, mask=None",
        "PositionWiseFeedForward": "d_model, d_ff, dropout=0.1",
        "LayerNormalization": "d_model, eps=1e-06",
        "ResidualConnection": "d_model, dropout=0.1",
        "ResidualConnection.forward": "self, x, sublayer",
        "EncoderBlock": "d_model, num_heads, d_ff, dropout=0.1",
        "EncoderBlock.forward": "self, x, mask=None",
        "DecoderBlock": "d_model, num_heads, d_ff, dropout=0.1",
        "DecoderBlock.forward": "self, x, encoder_output, src_mask=None, tgt_mask=None",
        "Encoder": STACK,
        "Encoder.forward": "self, x, mask=None",
        "Decoder": STACK,
        "Decoder.forward": "self, x, encoder_output, src_mask=None, tgt_mask=None",
        "Transformer": "src_vocab_size, tgt_vocab_size, d_model=512, num_heads=8, d_ff=2048, num_layers=6, "
        "dropout=0.1, max_seq_len=5000",
        "Transformer.encode": "self, src, src_mask=None",
        "Transformer.decode": "self, tgt, encoder_output, src_mask=None, tgt_mask=None",
        "BERTModel": f"vocab_size, {SIZES}, max_seq_len=512",
        "GPTModel": f"vocab_size, {SIZES}, max_seq_len=1024",
        "GPTModel.forward": "self, input_ids, attention_mask=None",
        "GPTModel.generate_causal_mask": "self, seq_len",
        "T5Model.forward": "self, input_ids, decoder_input_ids, encoder_attention_mask=None, "
        "decoder_attention_mask=None",
        "visualize_positional_encoding": "",
        "visualize_attention": "attention_weights, tokens",
    },
    "004": {
        "simple_tokenizer": "text",
        "create_embeddings": "vocab_size, embed_dim",
        "get_token_embeddings": "tokens, vocab, embeddings",
        "positional_encoding": "seq_len, embed_dim",
        "softmax": "x",
        "split_heads": "x, num_heads",
        "combine_heads": "x",
        "layer_norm": "x, eps=1e-06",
        "relu": "x",
        "feed_forward": "x, W1, b1, W2, b2",
        "feed_forward_with_residual": "x, W1, b1, W2, b2",
        "MultiHeadAttention": "model_dim, num_heads",
        "MultiHeadAttention.forward": "self, query, key, value",
        "AddNorm": "model_dim",
        "FeedForward": "model_dim, ff_dim",
        "EncoderLayer": "model_dim, num_heads, ff_dim",
        "EncoderLayer.forward": "self, x",
        "TransformerEncoder": "num_layers, model_dim, num_heads, ff_dim",
        "TransformerEncoder.forward": "self, x",
    },
}


def written(function):
    """Its parameters as a document writes them; what ours takes by keyword alone is left out."""
    parameters = inspect.signature(function).parameters.values()
    shown = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    return ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in shown)


@pytest.mark.parametrize(("number", "name"), [(number, name) for number in SIGNATURES for name in SIGNATURES[number]])
def test_parameters_are_the_documents(number, name):
    found = MODULES[number]
    for part in name.split("."):
        found = getattr(found, part)
    assert written(found) == SIGNATURES[number][name]
    assert name.split(".")[0] in MODULES[number].__all__


def softmax_attention(q, k, v, mask=None):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return scores.softmax(-1) @ v, scores.softmax(-1)


def random_heads(lengths=(5, 7, 7)):
    return [torch.randn(2, 4, length, 4) for length in lengths]


MASK = torch.tensor([[1, 1, 1, 0, 1, 1, 0], [1, 0, 1, 1, 1, 1, 1]])[:, None, None]


def test_000_attention_returns_the_output_alone():
    attention = document_000.MultiHeadAttention(16, 4)
    q, k, v = random_heads()
    expected, _ = softmax_attention(q, k, v, MASK)
    torch.testing.assert_close(attention.scaled_dot_product_attention(q, k, v, MASK), expected)
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    q, k, v = attention.project(x, y, y)
    expected, _ = softmax_attention(q, k, v, MASK)
    torch.testing.assert_close(attention(x, y, y, MASK), attention.merge(expected))  # in training too: nothing drops


def test_003_attention_returns_the_output_and_the_weights_of_a_batch_of_two():
    """With an output alone, `out, w = mha(q, k, v)` would take the two sentences apart."""
    attention = document_003.MultiHeadAttention(16, 4).eval()
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    out, w = attention(x, y, y, MASK)
    expected, weights = softmax_attention(*attention.project(x, y, y), MASK)
    torch.testing.assert_close(out, attention.merge(expected))
    torch.testing.assert_close(w, weights)
    assert (out.shape, w.shape) == ((2, 5, 16), (2, 4, 5, 7))
    assert isinstance(attention(x, x, x), tuple)


def test_003_attention_splits_and_merges_heads():
    attention = document_003.MultiHeadAttention(16, 4).eval()
    x = torch.randn(2, 5, 16)
    heads = attention.split_heads(x)
    assert torch.equal(heads[1, 2, 3], x[1, 3, 8:12])
    assert torch.equal(attention.merge_heads(heads), x)
    q, k, v = random_heads()
    for found, expected in zip(
        attention.scaled_dot_product_attention(q, k, v, MASK), softmax_attention(q, k, v, MASK), strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_003_weights_in_training_are_those_that_were_used():
    attention = document_003.MultiHeadAttention(16, 4, dropout=0.5)
    q, k, v = random_heads()
    context, weights = attention.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(context, weights @ v)
    assert (weights == 0).float().mean() > 0.2


@pytest.mark.parametrize("module", [document_000, document_002, document_003])
def test_a_mask_for_each_head_is_taken(module):
    attention = module.MultiHeadAttention(16, 4, *((0.0,) if module is document_002 else ()))
    mask = (torch.rand(2, 4, 5, 5) < 0.5) | torch.eye(5, dtype=torch.bool)
    x = torch.randn(2, 5, 16)
    found = attention.eval()(x, x, x, mask)
    expected, _ = softmax_attention(*attention.project(x, x, x), mask)
    torch.testing.assert_close(found[0] if module is document_003 else found, attention.merge(expected))


def test_transformers_of_000_and_003_differ_where_the_documents_do():
    old = document_000.Transformer(9, 8, 16, 4, 1).config
    new = document_003.Transformer(9, 8, 16, 4, 20, 1, 0.2, 30).config
    assert (old.norm_placement, old.activation, old.scale_embeddings, old.attention_dropout) == ("post", "relu", 0, 0)
    assert (new.norm_placement, new.activation, new.scale_embeddings, new.attention_dropout) == ("pre", "gelu", 1, 0.2)
    assert (new.d_ff, new.n_decoder_layers, new.max_len) == (20, 1, 30)
    assert document_001.Transformer is document_000.Transformer


def test_002_layers_are_pre_norm_with_relu():
    x, y, keep = torch.randn(2, 5, 16), torch.randn(2, 7, 16), MASK
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


def test_the_table_of_positions_is_the_documents():
    encoding = document_000.PositionalEncoding(6, 0.0, 9)
    assert encoding.pe.shape == (1, 9, 6)
    torch.testing.assert_close(encoding.pe[0, :, 2], (torch.arange(9) * 10000 ** (-2 / 6)).sin())
    torch.testing.assert_close(encoding(torch.zeros(1, 9, 6)), encoding.pe)
    assert not encoding.state_dict()


def test_the_documents_test_checks_our_classes(capsys, monkeypatch):
    document_000.test_transformer()
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(".")[0] for line in printed] == list("123456")
    assert printed[-1].endswith("14,866,532")
    monkeypatch.setattr(document_000.MultiHeadAttention, "forward", lambda self, Q, K, V: Q[:, :3])  # noqa: N803
    with pytest.raises(AssertionError, match=r"2\. MultiHeadAttention failed: \(2, 10, 512\) -> \(2, 3, 512\)"):
        document_000.test_transformer()


def test_pictures_are_written_under_the_documents_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert document_003.visualize_positional_encoding() is None
    weights = torch.rand(2, 4, 3, 3, requires_grad=True)
    assert document_003.visualize_attention(weights, ["a", "$b$", "c"]) is None
    names = ["positional_encoding.png", "self_attention_visualization.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
    with pytest.raises(ValueError, match=r"shape \(2, 4, 3, 3\): expected \(batch, heads, 2, 2\)"):
        document_003.visualize_attention(weights, ["a", "b"])


def test_pictures_without_matplotlib_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'glassformer\[plot\]'"):
        document_003.visualize_positional_encoding()


def test_004_turns_tokens_into_vectors():
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


def test_004_softmax_takes_each_rows_maximum():
    """With the maximum of the whole matrix the second row would be 0/0."""
    rows = document_004.softmax(np.array([[1000.0, 999.0], [-1000.0, -1000.0]]))
    assert rows == pytest.approx(np.array([[1 / (1 + math.exp(-1)), 1 / (1 + math.e)], [0.5, 0.5]]))
    assert document_004.softmax([0.0, 0.0]) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_004_functions_compute_their_formulas(dtype):
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


def test_004_encoder_layer_is_made_of_the_documents_functions():
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


def test_004_attention_keeps_keys_and_values_apart():
    np.random.seed(0)
    attention = document_004.MultiHeadAttention(8, 2)
    query, key, value = np.random.randn(3, 1, 4, 8)
    assert not np.allclose(attention.forward(query, key, value), attention.forward(query, key, key))
    assert attention.forward(query[:, :2], key, value).shape == (1, 2, 8)
    with pytest.raises(ValueError, match=r"key has shape \(4, 8\): expected \(batch, length, 8\)"):
        attention.forward(query, key[0], value)
    with pytest.raises(ValueError, match="num_heads=3: expected a divisor of model_dim=8"):
        document_004.MultiHeadAttention(8, 3)


def test_004_encoder_layers_have_weights_of_their_own_and_follow_the_seed():
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
