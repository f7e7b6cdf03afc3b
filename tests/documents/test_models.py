"""The documents' models: arguments, parameter counts and outputs.

`formulas.py` computes the documents' formulas from their parameter names, so these tests check both the models and the
loading of document weights. `make verify-documents` runs the documents' own code instead.
"""

import math

import pytest
import torch

import glassformer
from documents.formulas import (
    CAUSAL,
    HEADS,
    HIDDEN,
    KEEP,
    SOURCE,
    TARGET,
    WIDTH,
    Modern,
    Paper,
    V,
    document_layer,
    layer_shapes,
    linear,
    modern_shapes,
    modern_stack,
    random_state,
    waves,
)

MODERN = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "gelu", "scale_embeddings": True}


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("build", "parameters"),
    [
        (lambda: glassformer.Transformer(100, 100, d_model=512, num_heads=8, num_layers=2), 14_866_532),
        (lambda: glassformer.Transformer(100, 100, **MODERN), 44_294_244),
        (lambda: glassformer.BERTModel(30522), 108_496_896),
        (lambda: glassformer.GPTModel(50257), 162_301_009),
        (lambda: glassformer.T5Model(32128), 60_590_080),
    ],
)
def test_parameter_counts_equal_the_documents(build, parameters):
    with torch.device("meta"):  # no memory for the largest ones
        assert count(build()) == parameters


@pytest.mark.parametrize("mask_dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("masked", [True, False])
def test_transformer_equals_the_formulas_of_000(mask_dtype, masked):
    shapes = {"encoder_embedding.weight": (V, WIDTH), "decoder_embedding.weight": (V, WIDTH)}
    shapes |= {"fc_out.weight": (V, WIDTH), "fc_out.bias": (V,)}
    for index in range(2):
        shapes |= layer_shapes(f"encoder_layers.{index}", Paper, WIDTH, HIDDEN, False)
        shapes |= layer_shapes(f"decoder_layers.{index}", Paper, WIDTH, HIDDEN, True)
    p = random_state(shapes)
    source_mask, target_mask = (KEEP[:, None, None].to(mask_dtype), CAUSAL.to(mask_dtype)) if masked else (None, None)
    memory = p["encoder_embedding.weight"][SOURCE] + waves(6, WIDTH)
    for index in range(2):
        memory = document_layer(p, f"encoder_layers.{index}", Paper, HEADS, memory, source_mask)
    x = p["decoder_embedding.weight"][TARGET] + waves(5, WIDTH)
    for index in range(2):
        x = document_layer(p, f"decoder_layers.{index}", Paper, HEADS, x, target_mask, memory, source_mask)
    expected = linear(p, "fc_out", x)

    model = glassformer.Transformer(V, V, d_model=WIDTH, num_heads=HEADS, num_layers=2, d_ff=HIDDEN).eval()
    glassformer.load_document_weights(model, p | {"positional_encoding.pe": torch.zeros(1, 50, WIDTH)})
    torch.testing.assert_close(model(SOURCE, TARGET, source_mask, target_mask), expected, atol=1e-5, rtol=1e-5)
    in_parts = model.project(model.decode(TARGET, model.encode(SOURCE, source_mask), source_mask, target_mask))
    torch.testing.assert_close(in_parts, expected, atol=1e-5, rtol=1e-5)


def test_bert_equals_the_formulas_of_003():
    p = random_state(
        {"embedding.embedding.weight": (V, WIDTH)} | modern_shapes("encoder.layers", False, "encoder.norm")
    )
    x = p["embedding.embedding.weight"][SOURCE] * math.sqrt(WIDTH)
    expected = Modern.norm(p, "encoder.norm", modern_stack(p, "encoder.layers", HEADS, x, KEEP[:, None, None]))
    model = glassformer.BERTModel(V, d_model=WIDTH, num_heads=HEADS, d_ff=HIDDEN, num_layers=2).eval()
    glassformer.load_document_weights(model, p)
    torch.testing.assert_close(model(SOURCE, KEEP), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(SOURCE, attention_mask=KEEP.bool()), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(SOURCE, KEEP[:, None, None].float()), expected, atol=1e-5, rtol=1e-5)


def test_gpt_equals_the_formulas_of_003():
    shapes = {"embedding.embedding.weight": (V, WIDTH), "head.weight": (V, WIDTH), "head.bias": (V,)}
    p = random_state(shapes | modern_shapes("blocks", False, "norm"))
    x = p["embedding.embedding.weight"][SOURCE] * math.sqrt(WIDTH)
    mask = torch.ones(6, 6).tril() * KEEP[:, None, None]
    expected = linear(p, "head", Modern.norm(p, "norm", modern_stack(p, "blocks", HEADS, x, mask)))
    model = glassformer.GPTModel(V, d_model=WIDTH, num_heads=HEADS, d_ff=HIDDEN, num_layers=2).eval()
    glassformer.load_document_weights(model, p)
    torch.testing.assert_close(model(SOURCE, KEEP), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(model.generate_causal_mask(5), torch.ones(1, 1, 5, 5).tril().bool())


def test_t5_and_the_modern_transformer_equal_the_formulas_of_003():
    stacks = modern_shapes("encoder.layers", False, "encoder.norm") | modern_shapes(
        "decoder.layers", True, "decoder.norm"
    )
    p = random_state({"shared_embedding.embedding.weight": (V, WIDTH)} | stacks)
    table = p["shared_embedding.embedding.weight"]
    memory_mask = KEEP[:, None, None]
    memory = modern_stack(p, "encoder.layers", HEADS, table[SOURCE] * math.sqrt(WIDTH), memory_mask)
    memory = Modern.norm(p, "encoder.norm", memory)
    x = table[TARGET] * math.sqrt(WIDTH)
    x = modern_stack(p, "decoder.layers", HEADS, x, CAUSAL, memory, memory_mask)
    x = Modern.norm(p, "decoder.norm", x)

    model = glassformer.T5Model(
        V, d_model=WIDTH, num_heads=HEADS, d_ff=HIDDEN, num_encoder_layers=2, num_decoder_layers=2
    ).eval()
    glassformer.load_document_weights(model, p | {"lm_head.weight": table})
    torch.testing.assert_close(model(SOURCE, TARGET, KEEP), x @ table.T, atol=1e-5, rtol=1e-5)

    extra = {"src_embedding.embedding.weight": table, "tgt_embedding.embedding.weight": table}
    extra |= {"linear.weight": torch.randn(V, WIDTH), "linear.bias": torch.randn(V)}
    transformer = glassformer.Transformer(V, V, WIDTH, HEADS, 2, d_ff=HIDDEN, **MODERN).eval()
    glassformer.load_document_weights(transformer, {k: v for k, v in p.items() if "shared" not in k} | extra)
    expected = linear(extra, "linear", x)
    torch.testing.assert_close(transformer(SOURCE, TARGET, memory_mask, CAUSAL), expected, atol=1e-5, rtol=1e-5)


def test_positional_arguments_that_the_documents_order_differently_are_refused():
    """003 has d_ff before num_layers. Read in 000's order, this call would build 64 layers."""
    with pytest.raises(TypeError, match="positional arguments"):
        glassformer.Transformer(10, 10, 16, 4, 64, 2)


def test_encode_and_decode_of_003s_models_number_positions_as_their_forward_does():
    left = KEEP.flip(1)
    bert = glassformer.BERTModel(V, d_model=WIDTH, num_heads=HEADS, d_ff=HIDDEN, num_layers=1).eval()
    torch.testing.assert_close(bert.encode(SOURCE, left), bert(SOURCE, left))
    gpt = glassformer.GPTModel(V, d_model=WIDTH, num_heads=HEADS, d_ff=HIDDEN, num_layers=1).eval()
    cache = gpt.new_cache(2, 6)
    with torch.no_grad():
        steps = [gpt(t, m, cache=cache) for t, m in zip(SOURCE.split(2, 1), left.split(2, 1), strict=True)]
        torch.testing.assert_close(torch.cat(steps, 1), gpt(SOURCE, left))


def test_each_model_has_the_dropout_of_its_document():
    config = glassformer.Transformer(V, V, d_model=WIDTH, num_heads=HEADS, num_layers=1).config
    assert (config.dropout, config.activation_dropout, config.embedding_dropout) == (0.1, 0.1, 0.1)
    assert config.attention_dropout == 0, "000 and 001 drop no attention weights"
    for model in (glassformer.BERTModel(V, WIDTH, HEADS), glassformer.build_transformer(V, V, 9, 9, WIDTH, 1, HEADS)):
        assert model.config.attention_dropout == 0.1, "002 and 003 do"


def test_build_transformer_has_the_settings_of_002():
    model = glassformer.build_transformer(20, 25, 30, 40, d_model=16, N=2, h=4, d_ff=24)
    config = model.config
    assert (config.source_vocab, config.vocab_size, config.max_len) == (20, 25, 40)
    assert (config.norm, config.norm_placement, config.activation) == ("mean_std", "pre", "relu")
    assert config.scale_embeddings
    assert config.init == "xavier"
    assert model(SOURCE % 20, TARGET % 25).shape == (2, 5, 25)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m(SOURCE, TARGET, KEEP[:, None, None, :4]),
            r"src_mask has shape \(2, 1, 1, 4\): expected one that",
        ),
        (lambda m: m(SOURCE, TARGET, None, CAUSAL * -1e9), "tgt_mask holds"),
        (lambda m: m(SOURCE + V, TARGET), "src holds the id"),
        (lambda m: m(torch.zeros(1, 33, dtype=torch.long), TARGET[:1]), "src reaches 33 tokens"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    model = glassformer.Transformer(V, V, d_model=WIDTH, num_heads=HEADS, num_layers=1, d_ff=HIDDEN, max_seq_len=32)
    with pytest.raises(ValueError, match=message):
        call(model)
