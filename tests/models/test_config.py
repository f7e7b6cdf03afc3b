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


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"unknown preset 'GPT-2': did you mean 'gpt2'\?"):
        preset("GPT-2")


def test_a_preset_takes_changes_and_refuses_unknown_ones():
    assert preset("gpt2", n_decoder_layers=3).n_decoder_layers == 3
    with pytest.raises(ValueError, match="unknown config key"):
        preset("gpt2", n_layer=3)
