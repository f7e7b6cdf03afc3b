"""ModernBERT: config values, in the old and the new form."""

import pytest

from glassformer.checkpoint.hf.modernbert import read_config, write_config
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.models import preset

BASE = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "norm_bias": False,
    "norm_eps": 1e-05,
}


def test_the_settings_of_the_base_model_are_those_of_the_preset():
    config = read_config(BASE, frozenset())
    assert config == preset("modernbert-base", head_activation="gelu")
    assert read_config({"model_type": "modernbert", **write_config(config)}, frozenset()) == config


def test_layers_of_one_kind_have_one_base_of_rotary_frequencies():
    everywhere = read_config({**BASE, "global_attn_every_n_layers": 1}, frozenset())
    assert (everywhere.sliding_window, everywhere.rope_theta, everywhere.local_rope_theta) == (None, 160000.0, None)
    nowhere = read_config({**BASE, "layer_types": ["sliding_attention"] * 22}, frozenset())
    assert (nowhere.sliding_window, nowhere.global_layers, nowhere.rope_theta) == (65, (), 10000.0)
    assert nowhere.local_rope_theta is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types=.*expected full_attention or sliding_attention for each"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotary positions .* in full_attention layers, not supported"),
        ({"architectures": ["ModernBertForMultipleChoice"]}, "whose head is not supported: expected ModernBert with"),
        ({"classifier_pooling": "max", "architectures": ["ModernBertForSequenceClassification"]}, "classifier_pooling"),
    ],
)
def test_other_settings_are_refused_by_name(change, message):
    with pytest.raises((UnsupportedModelError, ValueError), match=message):
        read_config({**BASE, **change}, frozenset())
