import dataclasses
import json

import pytest

from glassformer.models import PRESETS, ModelConfig, preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_round_trips_through_json(name):
    config = preset(name)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_unknown_key_suggests_the_nearest_field():
    with pytest.raises(ValueError, match=r"unknown config key 'n_head': did you mean 'n_heads'\?"):
        ModelConfig.from_dict({"vocab_size": 3, "n_head": 2})
    with pytest.raises(ValueError, match="unknown config key 'zzz': expected one of vocab_size"):
        ModelConfig.from_dict({"vocab_size": 3, "zzz": 2})
    with pytest.raises(ValueError, match="'vocab_size' is missing"):
        ModelConfig.from_dict({"n_encoder_layers": 2})


def test_the_name_of_another_library_suggests_our_field():
    with pytest.raises(ValueError, match=r"'hidden_size': did you mean 'd_model'\?"):
        ModelConfig.from_dict({"vocab_size": 3, "hidden_size": 2})


def test_with_head_resets_the_fields_of_the_old_head():
    bert = preset("bert-base")
    classes = bert.with_head("sequence_class", n_labels=2, head_transform=True)
    assert (classes.tie, classes.n_labels, classes.pool_by) == ("none", 2, "first")
    assert preset("gpt2").with_head("sequence_class", n_labels=2).pool_by == "last"
    assert preset("bart-base").with_head("none").tie == "embeddings"


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset("gpt2").d_model = 3


def test_construction_does_not_change_the_given_values():
    """Fields hold the given values, None included; properties return the resolved ones."""
    config = preset("tiny-gpt2")
    assert config.n_kv_heads is None
    assert config.kv_heads == config.n_heads
    assert config.final_norm is None
    assert config.has_final_norm


BASE = {"vocab_size": 10, "n_encoder_layers": 1, "d_model": 8, "n_heads": 2}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_heads": 3}, ValueError, "n_heads=3 does not divide d_model=8"),
        ({"n_kv_heads": 3}, ValueError, "n_kv_heads=3 does not divide n_heads=2"),
        ({"vocab_size": 0}, ValueError, "vocab_size=0"),
        ({"d_model": -8}, ValueError, "d_model=-8"),
        ({"d_model": 8.0}, TypeError, "d_model=8.0: expected a whole number"),
        ({"d_model": "8"}, TypeError, "d_model='8': expected a whole number"),
        ({"d_model": True}, TypeError, "d_model=True: expected a whole number"),
        ({"gated": 1}, TypeError, "gated=1: expected True or False"),
        ({"max_len": 2.5}, TypeError, "max_len=2.5: expected a whole number or None"),
        ({"norm": "layers"}, ValueError, r"norm='layers'.*did you mean 'layer'\?"),
        ({"positions": "roatry"}, ValueError, r"did you mean 'rotary'\?"),
        ({"dropout": 1.0}, ValueError, "dropout=1.0: expected a probability"),
        ({"dropout": -0.1}, ValueError, "dropout=-0.1"),
        ({"norm_eps": 0.0}, ValueError, "norm_eps=0.0"),
        ({"norm_eps": float("inf")}, ValueError, "norm_eps=inf"),
        ({"attention_scale": float("nan")}, ValueError, "attention_scale=nan"),
        ({"n_labels": 3}, ValueError, "n_labels=3 with head='none'"),
        ({"head_transform": True}, ValueError, "head_transform=True with head='none'"),
        ({"head_activation": "gelu"}, ValueError, "head_activation='gelu' with head='none'"),
        (
            {"head_activation": "gelu", "head": "language_model"},
            ValueError,
            "head_transform=False: expected None, or head_transform=True",
        ),
        ({"scale_by_depth": True, "share_layers": True}, ValueError, "scale_by_depth=True with share_layers=True"),
        ({"pooling": "mean"}, ValueError, "pooling='mean' with head='none'"),
        ({"pooling": "most", "head": "embedding"}, ValueError, "pooling='most': expected one of first, last, mean"),
        ({"token_types": 2, "n_decoder_layers": 1}, ValueError, "token_types=2 for kind 'encoder_decoder'"),
        ({"n_encoder_layers": 0}, ValueError, "expected at least one layer"),
        ({"n_encoder_layers": -1}, ValueError, "n_encoder_layers=-1"),
        ({"positions": "rotary", "head_dim": 3}, ValueError, "expected an even head size"),
        ({"positions": "learned", "max_len": None}, ValueError, "max_len=None with positions='learned'"),
        ({"positions": "relative", "relative_buckets": 2}, ValueError, "at least 4 buckets"),
        ({"source_vocab_size": 9}, ValueError, "source_vocab_size=9 for kind 'encoder'"),
        ({"tie": "all"}, ValueError, "tie='all' for kind 'encoder'"),
        ({"tie": "output"}, ValueError, "tie='output' with head='none'.*expected tie='none'"),
        (
            {"tie": "embeddings", "n_decoder_layers": 1, "source_vocab_size": 9},
            ValueError,
            "expected equal sizes",
        ),
        ({"head": "token_class"}, ValueError, "n_labels=None with head='token_class'"),
        (
            {"head": "language_model", "tie": "output", "embedding_width": 4},
            ValueError,
            "expected head_transform=True",
        ),
    ],
)
def test_config_errors_name_the_field_and_the_expected_value(change, error, message):
    with pytest.raises(error, match=message):
        ModelConfig(**{**BASE, **change})
    with pytest.raises(error, match=message):
        ModelConfig.from_dict({**BASE, **change})
