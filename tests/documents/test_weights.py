"""Weights of the documents' models and blocks are loaded, or refused with the reason."""

import math

import pytest
import torch
import torch.nn.functional as F

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
    attention,
    document_layer,
    layer_shapes,
    linear,
    modern_shapes,
    modern_stack,
    random_state,
)
from glassformer.documents import document_000, document_002, document_003, load_document_weights
from glassformer.documents.weights import rename

X, Y = torch.randn(2, 5, WIDTH), torch.randn(2, 6, WIDTH)
MASK = KEEP[:, None, None]
KINDS = ("weight", "bias")


def part_of(style, cross, hidden=HIDDEN):
    """Return the state of a single layer, without the prefix that it has in a model."""
    shapes = layer_shapes("", style, WIDTH, hidden, cross)
    return random_state({name.removeprefix("."): shape for name, shape in shapes.items()})


def attention_state(style):
    shapes = {f"{name}.{kind}": (WIDTH,) * (2 if kind == "weight" else 1) for name in style.names for kind in KINDS}
    return random_state(shapes)


def under(state, name):
    """Add a prefix to all names, as the formulas expect."""
    return {f"{name}.{key}": value for key, value in state.items()}


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "style"),
    [
        (lambda: glassformer.MultiHeadAttention(WIDTH, HEADS), Paper),
        (lambda: glassformer.MultiHeadAttention(WIDTH, HEADS), Modern),
        (lambda: document_000.MultiHeadAttention(WIDTH, HEADS), Paper),
        (lambda: document_003.MultiHeadAttention(WIDTH, HEADS), Modern),
    ],
)
def test_attention_weights_are_loaded(make, style):
    model, state = make().eval(), attention_state(style)
    load_document_weights(model, state)
    found = model(X, Y, Y, MASK)
    expected = attention(under(state, "a"), "a", style, HEADS, X, Y, MASK)
    close(found[0] if isinstance(found, tuple) else found, expected)


@pytest.mark.parametrize(
    ("make", "style", "hidden"),
    [
        (lambda: glassformer.EncoderLayer(WIDTH, HEADS, HIDDEN), Paper, HIDDEN),
        (lambda: glassformer.EncoderBlock(WIDTH, HEADS, HIDDEN), Modern, HIDDEN),
        (lambda: document_000.EncoderLayer(WIDTH, HEADS), Paper, 2048),
        (lambda: document_003.EncoderBlock(WIDTH, HEADS, HIDDEN), Modern, HIDDEN),
    ],
)
def test_weights_of_an_encoder_layer_are_loaded(make, style, hidden):
    model, state = make().eval(), part_of(style, False, hidden)
    load_document_weights(model, state)
    close(model(Y, MASK), document_layer(under(state, "l"), "l", style, HEADS, Y, MASK))


@pytest.mark.parametrize(
    ("make", "style", "hidden"),
    [
        (lambda: glassformer.DecoderLayer(WIDTH, HEADS, HIDDEN), Paper, HIDDEN),
        (lambda: glassformer.DecoderBlock(WIDTH, HEADS, HIDDEN), Modern, HIDDEN),
        (lambda: document_000.DecoderLayer(WIDTH, HEADS), Paper, 2048),
        (lambda: document_003.DecoderBlock(WIDTH, HEADS, HIDDEN), Modern, HIDDEN),
    ],
)
def test_weights_of_a_decoder_layer_are_loaded(make, style, hidden):
    model, state = make().eval(), part_of(style, True, hidden)
    load_document_weights(model, state)
    close(model(X, Y, MASK, CAUSAL), document_layer(under(state, "l"), "l", style, HEADS, X, CAUSAL, Y, MASK))


def test_weights_of_003s_encoder_and_decoder_are_loaded():
    state = random_state(modern_shapes("layers", False, "norm"))
    encoder = glassformer.Encoder(WIDTH, HEADS, HIDDEN, 2).eval()
    load_document_weights(encoder, state | {"positional_encoding.pe": torch.zeros(1, 9, WIDTH)})
    close(encoder(Y, MASK), Modern.norm(state, "norm", modern_stack(state, "layers", HEADS, Y, MASK)))
    state = random_state(modern_shapes("layers", True, "norm"))
    decoder = glassformer.Decoder(WIDTH, HEADS, HIDDEN, 2).eval()
    load_document_weights(decoder, state)
    expected = modern_stack(state, "layers", HEADS, X, CAUSAL, Y, MASK)
    close(decoder(X, Y, MASK, CAUSAL), Modern.norm(state, "norm", expected))


@pytest.mark.parametrize(
    ("make", "names", "activation"),
    [
        (lambda: glassformer.FeedForward(WIDTH, HIDDEN), ("linear1", "linear2"), F.relu),
        (lambda: document_002.FeedForwardBlock(WIDTH, HIDDEN, 0.1), ("linear_1", "linear_2"), F.relu),
        (lambda: document_003.PositionWiseFeedForward(WIDTH, HIDDEN), ("linear1", "linear2"), F.gelu),
    ],
)
def test_feed_forward_weights_are_loaded(make, names, activation):
    sizes = {names[0]: (HIDDEN, WIDTH), names[1]: (WIDTH, HIDDEN)}
    state = random_state({f"{name}.weight": size for name, size in sizes.items()})
    state |= random_state({f"{name}.bias": size[:1] for name, size in sizes.items()})
    model = make().eval()
    load_document_weights(model, state)
    close(model(X), linear(state, names[1], activation(linear(state, names[0], X))))


def test_weights_of_norms_embeddings_and_projections_are_loaded():
    norm_state = random_state({"gamma": (WIDTH,), "beta": (WIDTH,)})
    norm, residual = document_003.LayerNormalization(WIDTH), document_003.ResidualConnection(WIDTH).eval()
    load_document_weights(norm, norm_state)
    load_document_weights(residual, under(norm_state, "norm"))
    expected = Modern.norm(under(norm_state, "n"), "n", X)
    close(norm(X), expected)
    close(residual(X, torch.sin), X + expected.sin())
    table = torch.randn(V, WIDTH)
    for model in (document_003.TokenEmbedding(V, WIDTH), document_002.InputEmbedding(WIDTH, V)):
        load_document_weights(model, {"embedding.weight": table})
        close(model(SOURCE), table[SOURCE] * math.sqrt(WIDTH))
    state = random_state({"proj.weight": (V, WIDTH), "proj.bias": (V,)})
    projection = document_002.ProjectionLayer(WIDTH, V)
    load_document_weights(projection, state)
    close(projection(X), linear(state, "proj", X))
    load_document_weights(document_000.PositionalEncoding(WIDTH, 0.1), {"pe": torch.zeros(1, 5000, WIDTH)})


def test_weights_of_002s_layer_have_the_names_of_its_forward():
    state = {}
    for name, value in part_of(Modern, True).items():
        name = name.replace("attention.", "attention_block.").replace(
            "feed_forward.linear", "feed_forward_block.linear_"
        )
        for number in (1, 2, 3):
            name = name.replace(f"residual{number}.", f"residual_connections.{number - 1}.")
        state[name] = value
    with pytest.raises(ValueError, match=r"document 002's DecoderBlock, and DecoderBlock has activation='gelu'"):
        load_document_weights(document_003.DecoderBlock(WIDTH, HEADS, HIDDEN), state)
    model = document_002.DecoderBlock(WIDTH, HEADS, HIDDEN, 0.1)
    load_document_weights(model, state)
    assert torch.equal(model.layer.cross_attn_sublayer.norm.weight, state["residual_connections.1.norm.gamma"])


def bert():
    return glassformer.BERTModel(V, d_model=WIDTH, num_heads=HEADS, d_ff=HIDDEN, num_layers=1)


@pytest.mark.parametrize(
    ("make", "state", "message"),
    [
        (
            bert,
            dict,
            r"the state is empty: expected .* BERTModel, with 19 parameters\. Missing: embeddings\.tokens",
        ),
        (
            bert,
            lambda: attention_state(Modern),
            r"document 003's MultiHeadAttention: expected .* for BERTModel.* Not a parameter of the model: w_q\.weight",
        ),
        (
            lambda: glassformer.MultiHeadAttention(WIDTH, HEADS),
            lambda: part_of(Paper, False),
            r"document 000's EncoderLayer: expected the state of the document's module for MultiHeadAttention",
        ),
        (
            lambda: glassformer.DecoderLayer(WIDTH, HEADS, HIDDEN),
            lambda: part_of(Paper, False),
            r"document 000's EncoderLayer: expected .* DecoderLayer.* Missing: cross_attn\.q_proj\.weight",
        ),
        (
            lambda: glassformer.EncoderBlock(WIDTH, HEADS, HIDDEN),
            lambda: part_of(Paper, False),
            r"document 000's EncoderLayer, and EncoderBlock has norm_placement='pre' where 'post' is expected",
        ),
        (
            lambda: glassformer.EncoderLayer(WIDTH, HEADS, HIDDEN),
            lambda: part_of(Modern, False),
            r"document 003's EncoderBlock, and EncoderLayer has norm_placement='post' where 'pre' is expected",
        ),
        (
            lambda: glassformer.EncoderLayer(WIDTH, HEADS, HIDDEN + 1),
            lambda: part_of(Paper, False),
            r"ffn\.linear1\.weight has shape \(20, 16\): expected \(21, 16\), as EncoderLayer has it; build the model",
        ),
        (
            lambda: glassformer.LayerNormalization(WIDTH),
            lambda: {name: torch.ones(WIDTH) for name in ("gamma", "weight", "beta")},
            r"Given twice: gamma, weight",
        ),
        (
            lambda: glassformer.LayerNormalization(WIDTH),
            lambda: {"running_mean": torch.ones(WIDTH)},
            r"the state is no document's, with the names running_mean: expected .* LayerNormalization",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_copied(make, state, message):
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_document_weights(model, state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "nothing was copied"


def test_weights_of_another_embedding_scale_are_refused():
    """003 scales its embeddings. Without the scale the same weights give other outputs."""
    shapes = {f"{side}_embedding.embedding.weight": (V, WIDTH) for side in ("src", "tgt")}
    shapes |= {"linear.weight": (V, WIDTH), "linear.bias": (V,)}
    for name, cross in (("encoder", False), ("decoder", True)):
        shapes |= modern_shapes(f"{name}.layers", cross, f"{name}.norm")
    state = random_state(shapes)
    sizes = {"d_model": WIDTH, "num_heads": HEADS, "d_ff": HIDDEN, "num_layers": 2}
    style = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "gelu"}
    with pytest.raises(ValueError, match="Transformer has scale_embeddings=False where True is expected"):
        load_document_weights(glassformer.Transformer(V, V, **sizes, **style), state)
    scaled = glassformer.Transformer(V, V, **sizes, **style, scale_embeddings=True).eval()
    own = document_003.Transformer(V, V, **sizes).eval()
    for model in (scaled, own):
        load_document_weights(model, state)
    close(own(SOURCE, TARGET, MASK, CAUSAL), scaled(SOURCE, TARGET, MASK, CAUSAL))


def test_a_shared_table_with_two_values_is_refused():
    sizes = {"d_model": WIDTH, "num_heads": HEADS, "d_ff": HIDDEN, "num_encoder_layers": 2, "num_decoder_layers": 2}
    shapes = {"shared_embedding.embedding.weight": (V, WIDTH), "lm_head.weight": (V, WIDTH)}
    for name, cross in (("encoder", False), ("decoder", True)):
        shapes |= modern_shapes(f"{name}.layers", cross, f"{name}.norm")
    with pytest.raises(ValueError, match=r"shared_embedding\.embedding\.weight and lm_head\.weight differ"):
        load_document_weights(glassformer.T5Model(V, **sizes), random_state(shapes))


def test_an_invalid_state_is_refused():
    with pytest.raises(TypeError, match=r"state is a list: expected a state_dict\(\)"):
        load_document_weights(bert(), [1, 2])


def test_missing_and_unexpected_weights_are_named():
    model = glassformer.BERTModel(V, d_model=WIDTH, num_heads=HEADS, d_ff=HIDDEN, num_layers=1)
    with pytest.raises(ValueError, match=r"Missing.*embeddings\.tokens\.weight"):
        glassformer.load_document_weights(model, {})
    assert rename("encoder.layers.3.residual2.norm.gamma") == "encoder.layers.3.ffn_sublayer.norm.weight"
