"""A grown model computes what the small one did, for every family and option, or the growth is refused by name."""

import pytest
import torch

from glassformer.models import ModelConfig, build_model, preset
from glassformer.models.growth import check_growth, grow_model
from glassformer.models.presets import FULL_SIZE

FAMILIES = tuple(
    name
    for name in FULL_SIZE
    if preset(name).positions != "disentangled" and preset(name).first_norm and not preset(name).n_experts
)
DECODER = {"vocab_size": 20, "n_decoder_layers": 2, "d_model": 8, "n_heads": 2, "d_ff": 12, "max_len": 16}
DECODER |= {"norm_placement": "pre", "positions": "rotary", "head": "language_model", "dropout": 0.0}
ENCODER = {**DECODER, "n_decoder_layers": 0, "n_encoder_layers": 2, "positions": "learned"}


def trained(config):
    """Return a model in float64 whose parameters, norms and biases included, all differ from their initial values."""
    torch.manual_seed(1)
    model = build_model(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def outputs(model):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(4, 20, (3, 7), generator=generator)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 5:] = False
    with torch.no_grad():
        if model.kind == "encoder_decoder":
            return model(tokens, tokens.flip(1), mask, mask)[mask]
        found = model(tokens, mask)
        return found[mask] if found.dim() == 3 else found


def grown(config, **changes):
    small = trained(config)
    torch.manual_seed(2)
    large = grow_model(small, ModelConfig.from_dict({**config.to_dict(), **changes}))
    assert large.n_parameters() > small.n_parameters()
    return outputs(small), outputs(large), large


def assert_same(config, **changes):
    before, after, large = grown(config, **changes)
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
    return large


def layers(config):
    return {name: 5 for name in ("n_encoder_layers", "n_decoder_layers") if getattr(config, name)}


@pytest.mark.parametrize("family", FAMILIES)
def test_wider_feed_forward_layers_and_more_heads_change_no_output(family):
    config = preset(f"tiny-{family}")
    assert_same(config, d_ff=40)
    if config.qk_norm_over == "all_heads":
        return  # which depends on the number of heads
    assert_same(config, n_heads=8, head_dim=config.head_size, n_kv_heads=None if config.n_kv_heads is None else 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_layers_change_no_output_with_pre_norm_and_are_refused_with_post_norm(family):
    config = preset(f"tiny-{family}")
    if config.norm_placement == "pre" and not config.unrotated_layers:
        assert_same(config, **layers(config))
        return
    refused = r"n_(en|de)coder_layers=5(: .*norm_placement='(post|sandwich|output)'| with unrotated_layers=)"
    with pytest.raises(ValueError, match=refused):
        grown(config, **layers(config))
    pre = {"norm_placement": "pre", "share_layers": False, "global_layers": (), "unrotated_layers": ()}
    assert_same(preset(f"tiny-{family}", **pre), **layers(config))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wider_model_has_the_same_outputs(family):
    config = preset(f"tiny-{family}")
    if config.positions == "sinusoidal":
        with pytest.raises(ValueError, match="d_model=32 with positions='sinusoidal'"):
            grown(config, d_model=32, n_heads=8)
        config = preset(f"tiny-{family}", positions="learned")
    if not config.norm_weight:
        with pytest.raises(ValueError, match="d_model=32 with tie='output' and norm_weight=False"):
            grown(config, d_model=32, n_heads=8)
        config = preset(f"tiny-{family}", tie="none")
    if config.qk_norm_over == "all_heads":
        with pytest.raises(ValueError, match="n_heads=8 and n_kv_heads=8 with qk_norm_over='all_heads'"):
            grown(config, d_model=32, n_heads=8)
        config = preset(f"tiny-{family}", qk_norm_over="head")
    assert_same(config, d_model=32, n_heads=8, n_kv_heads=None if config.n_kv_heads is None else 4)
    assert_same(config, d_model=48, n_heads=12, n_kv_heads=None if config.n_kv_heads is None else 6, d_ff=33)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (preset("tiny-modernbert-base"), "first_norm=False: a model with this setting cannot grow yet"),
        (preset("tiny-mixtral"), "n_experts=4: a model with experts cannot grow yet"),
        (preset("tiny-bert-base", conv_kernel=3), "conv_kernel=3: a model with this setting cannot grow yet"),
    ],
)
def test_settings_that_cannot_grow_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        grown(config, d_ff=40)


def test_disentangled_positions_are_refused():
    with pytest.raises(ValueError, match="positions='disentangled'"):
        grown(preset("tiny-deberta-v3-base"), d_ff=40)


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5-small"])
def test_all_sizes_may_grow_at_once(family):
    config = preset(f"tiny-{family}")
    kv_heads = None if config.n_kv_heads is None else 4
    assert_same(config, d_model=32, n_heads=8, n_kv_heads=kv_heads, d_ff=64, **layers(config))


OPTIONS = {
    "layer norm": {"norm": "layer"},
    "rms norm": {"norm": "rms"},
    "mean and deviation": {"norm": "mean_std"},
    "post-norm": {"norm_placement": "post", "tie": "output"},
    "post-norm with a final norm": {"norm_placement": "post", "final_norm": True, "tie": "output"},
    "no final norm": {"final_norm": False},
    "tied output": {"tie": "output", "scale_embeddings": True, "output_bias": False},
    "scaled output": {"tie": "output", "scale_output": True},
    "scaled untied output": {"scale_output": True},
    "narrow embeddings": {"embedding_width": 6, "positions": "sinusoidal", "embedding_norm": True},
    "narrow tied embeddings": {"embedding_width": 6, "positions": "none", "tie": "output", "head_transform": True},
    "head transform": {"head_transform": True, "tie": "output"},
    "query and key norms": {"qk_norm": True},
    "gated": {"gated": True, "ffn_bias": False},
    "grouped queries": {"n_heads": 4, "n_kv_heads": 2},
    "no biases": {"qkv_bias": False, "out_bias": False},
    "learned positions": {"positions": "learned", "position_offset": 2, "embedding_norm": True},
    "relative positions": {"positions": "relative"},
    "relative positions of each layer": {"positions": "relative", "share_relative_bias": False},
    "scores divided by the layer's number": {"scale_by_depth": True},
    "partly rotary": {"rope_width": 2, "head_dim": 4},
    "scaled rotary": {"rope_scaling": "linear", "rope_factor": 2.0},
    "no positions": {"positions": "none"},
    "alibi": {"positions": "alibi"},
    "token types": {"token_types": 2},
    "sliding window": {"sliding_window": 3},
    "sequence classes": {"head": "sequence_class", "n_labels": 3, "head_transform": True, "pooling": "mean"},
    "token classes": {"head": "token_class", "n_labels": 3},
    "span": {"head": "span"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_allows_a_wider_model(name):
    config = ModelConfig(**{**DECODER, **OPTIONS[name]})
    n_heads, n_kv_heads = 2 * config.n_heads, None if config.n_kv_heads is None else 2 * config.n_kv_heads
    # The unbiased deviation plus eps is not proportional to the deviation, so `mean_std` differs in the 7th digit.
    before, after, _ = grown(config, d_model=16, n_heads=n_heads, n_kv_heads=n_kv_heads, d_ff=24)
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-5 if name == "mean and deviation" else 1e-9)


def test_encoders_grow_with_their_heads():
    config = ModelConfig(**{**ENCODER, "head": "sequence_class", "n_labels": 3})
    assert_same(config, d_model=24, n_heads=6, d_ff=50, n_encoder_layers=3)


def test_embeddings_keep_their_dot_products():
    before, after, _ = grown(ModelConfig(**{**ENCODER, "head": "embedding"}), d_model=16, n_heads=4)
    torch.testing.assert_close(after @ after.T, before @ before.T)


@pytest.mark.parametrize(("positions", "head_dim"), [("rotary", 8), ("rotary", 12), ("learned", 7), ("alibi", 9)])
def test_heads_may_become_larger(positions, head_dim):
    assert_same(ModelConfig(**{**DECODER, "positions": positions}), head_dim=head_dim)


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(4, 4), (8, 2), (8, 4), (12, 3), (16, 2)])
def test_groups_of_queries_may_change(n_heads, n_kv_heads):
    config = ModelConfig(**{**DECODER, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4})
    assert_same(config, n_heads=n_heads, n_kv_heads=n_kv_heads)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 4), (5, 8), (6, 7), (4, 16)])
def test_heads_with_linear_biases_keep_their_slopes(before, after):
    config = ModelConfig(**{**DECODER, "positions": "alibi", "n_heads": before, "head_dim": 4})
    assert_same(config, n_heads=after)


def test_partly_rotary_heads_may_become_larger():
    assert_same(ModelConfig(**{**DECODER, "rope_width": 2}), head_dim=7)


def test_layers_with_their_own_relative_bias_grow():
    config = ModelConfig(**{**DECODER, "positions": "relative", "share_relative_bias": False})
    assert_same(config, n_decoder_layers=5, n_heads=4, head_dim=4)


def test_new_layers_are_spread_and_start_as_the_identity():
    large = assert_same(ModelConfig(**DECODER), n_decoder_layers=5)
    is_zero = [not bool(layer.ffn.down_proj.weight.any()) for layer in large.decoder.layers]
    assert is_zero == [False, True, False, True, True]


def test_the_copies_of_a_wider_model_learn_different_things():
    _, _, large = grown(ModelConfig(**DECODER), d_model=16, n_heads=4)
    outputs_of = large.train()(torch.arange(4, 14)[None])
    outputs_of.square().sum().backward()
    gradient = large.embeddings.tokens.weight.grad
    assert not torch.allclose(gradient[:, :8], gradient[:, 8:])
    assert all(parameter.grad is not None for parameter in large.parameters())


@pytest.mark.parametrize(
    ("start", "changes", "message"),
    [
        ({}, {"d_model": 12, "n_heads": 3}, "d_model=12: expected a multiple of 8"),
        ({}, {"d_ff": 8}, "d_ff=8: expected at least 12"),
        ({}, {"n_decoder_layers": 1}, "n_decoder_layers=1: expected at least 2"),
        ({}, {"n_encoder_layers": 2}, "kind 'encoder_decoder' cannot grow from one of kind 'decoder'"),
        ({}, {"norm": "rms"}, "norm='rms': expected 'layer', as the model to grow has it"),
        ({}, {"vocab_size": 21}, "vocab_size=21: expected 20"),
        ({}, {"n_heads": 4}, "head_dim=2: expected at least 4"),
        ({}, {"head_dim": 6}, "head_dim=6 with positions='rotary': expected a multiple of 4"),
        ({"qk_norm": True}, {"d_model": 16}, r"head_dim=8 with qk_norm=True: .* n_heads=4 for d_model=16"),
        ({"scale_by_depth": True}, {"n_decoder_layers": 3}, "n_decoder_layers=3 with scale_by_depth=True"),
        ({"rope_scaling": "linear", "rope_factor": 2.0}, {"head_dim": 8}, "head_dim=8 with rope_scaling='linear'"),
        ({"share_layers": True}, {"n_decoder_layers": 3}, "n_decoder_layers=3 with share_layers=True"),
        ({"tie": "output", "final_norm": False}, {"d_model": 16}, "with tie='output' and final_norm=False"),
        (
            {"tie": "output", "norm_placement": "post", "share_layers": True},
            {"d_model": 16},
            "with tie='output' and share_layers=True",
        ),
        (
            {"positions": "alibi", "n_kv_heads": 1, "head_dim": 4},
            {"n_heads": 4},
            "n_heads=4 with positions='alibi' and n_kv_heads=1",
        ),
        (
            {"n_heads": 4, "n_kv_heads": 4, "head_dim": 4},
            {"n_heads": 8, "n_kv_heads": 2},
            "n_kv_heads=2: expected at least 4",
        ),
        ({}, {"dropout": 0.3, "init": "normal", "d_ff": 24}, None),
    ],
)
def test_a_refusal_names_the_setting(start, changes, message):
    small = ModelConfig(**{**DECODER, **start})
    large = ModelConfig.from_dict({**small.to_dict(), **changes})
    if message is None:
        check_growth(small, large)
        return
    with pytest.raises(ValueError, match=message):
        check_growth(small, large)
