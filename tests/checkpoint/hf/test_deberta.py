"""DeBERTa v3: config values."""

import pytest

from glassformer.checkpoint.hf.deberta import read_config, write_config
from glassformer.checkpoint.hf.values import UnsupportedModelError

V3_BASE = {
    "model_type": "deberta-v2",
    "architectures": ["DebertaV2ForMaskedLM"],
    "vocab_size": 128100,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "position_biased_input": False,
    "type_vocab_size": 0,
}


def test_the_settings_of_v3_base_are_read_and_written():
    config = read_config(V3_BASE, frozenset())
    assert (config.positions, config.relative_buckets, config.relative_max_distance) == ("disentangled", 256, 512)
    assert config.scale == (3 * 64) ** -0.5
    assert read_config({"model_type": "deberta-v2", **write_config(config)}, frozenset()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size=3, which is not supported: expected 0"),
        ({"share_att_key": None}, "share_att_key=None, which is not supported: expected True"),
        ({"pos_att_type": None}, "pos_att_type=.., which is not supported: expected 'p2c.c2p'"),
        ({"position_buckets": -1}, "position_buckets=-1, not supported: expected 1 or more"),
    ],
)
def test_settings_of_other_versions_are_refused_by_name(change, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read_config({**V3_BASE, **change}, frozenset())
