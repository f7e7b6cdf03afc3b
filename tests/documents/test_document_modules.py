"""Each document's module has the names and signatures of its document."""

import inspect

import pytest
import torch

from documents.formulas import softmax_attention
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


def signature_of(function):
    """Return the parameters as a document writes them, without our keyword-only ones."""
    parameters = inspect.signature(function).parameters.values()
    shown = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    return ", ".join(str(parameter.replace(annotation=parameter.empty)) for parameter in shown)


@pytest.mark.parametrize(("number", "name"), [(number, name) for number in SIGNATURES for name in SIGNATURES[number]])
def test_signatures_equal_the_documents(number, name):
    found = MODULES[number]
    for part in name.split("."):
        found = getattr(found, part)
    assert signature_of(found) == SIGNATURES[number][name]
    assert name.split(".")[0] in MODULES[number].__all__


@pytest.mark.parametrize("module", [document_000, document_002, document_003])
def test_attention_takes_a_mask_for_each_head(module):
    attention = module.MultiHeadAttention(16, 4, *((0.0,) if module is document_002 else ()))
    mask = (torch.rand(2, 4, 5, 5) < 0.5) | torch.eye(5, dtype=torch.bool)
    x = torch.randn(2, 5, 16)
    found = attention.eval()(x, x, x, mask)
    expected, _ = softmax_attention(*attention.project(x, x, x), mask)
    torch.testing.assert_close(found[0] if module is document_003 else found, attention.merge(expected))


def test_transformers_of_000_and_003_have_their_documents_settings():
    old = document_000.Transformer(9, 8, 16, 4, 1).config
    new = document_003.Transformer(9, 8, 16, 4, 20, 1, 0.2, 30).config
    assert (old.norm_placement, old.activation, old.scale_embeddings, old.attention_dropout) == ("post", "relu", 0, 0)
    assert (new.norm_placement, new.activation, new.scale_embeddings, new.attention_dropout) == ("pre", "gelu", 1, 0.2)
    assert (new.d_ff, new.n_decoder_layers, new.max_len) == (20, 1, 30)
    assert document_001.Transformer is document_000.Transformer
