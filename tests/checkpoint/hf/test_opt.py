"""OPT: config values."""

import pytest

from glassformer.checkpoint.hf.opt import read_config, write_config
from glassformer.checkpoint.hf.values import UnsupportedModelError

OPT_125M = {
    "model_type": "opt",
    "vocab_size": 50272,
    "hidden_size": 768,
    "word_embed_proj_dim": 768,
    "ffn_dim": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
}


def test_the_settings_of_opt_125m_are_read_and_written():
    config = read_config(OPT_125M, frozenset())
    assert (config.activation, config.position_offset, config.norm_placement) == ("relu", 2, "pre")
    assert read_config({"model_type": "opt", **write_config(config)}, frozenset()) == config


def test_opt_350m_is_refused_by_name():
    values = {**OPT_125M, "hidden_size": 1024, "word_embed_proj_dim": 512, "do_layer_norm_before": False}
    with pytest.raises(UnsupportedModelError, match="word_embed_proj_dim=512, which is not supported: expected 1024"):
        read_config(values, frozenset())
