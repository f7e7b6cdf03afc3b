"""MPNet: config values."""

import pytest

from glassformer.checkpoint.hf.mpnet import read_config, write_config
from glassformer.checkpoint.hf.values import UnsupportedModelError

BASE = {
    "model_type": "mpnet",
    "architectures": ["MPNetForMaskedLM"],
    "vocab_size": 30527,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 514,
    "layer_norm_eps": 1e-05,
    "relative_attention_num_buckets": 32,
    "pad_token_id": 1,
}


def test_the_settings_of_the_base_model_are_read_and_written():
    config = read_config(BASE, frozenset())
    assert (config.positions, config.position_offset, config.max_len) == ("learned", 2, 512)
    assert (config.relative_bias, config.relative_buckets, config.relative_max_distance) == (True, 32, 128)
    assert read_config({"model_type": "mpnet", **write_config(config)}, frozenset()) == config


def test_another_number_of_buckets_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="relative_attention_num_buckets=64, which is not supported"):
        read_config({**BASE, "relative_attention_num_buckets": 64}, frozenset())
