"""DeBERTa v1, v2 and v3: config values, and what published files hold beside the model."""

import pytest
import torch

from checkpoint.hf_comparison import change_tensors, first_seed, same_numbers, save
from checkpoint.random_hf import draw
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.deberta import V1, V2, read_config, write_config
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
V1_BASE = {key: value for key, value in V3_BASE.items() if key not in ("position_buckets", "norm_rel_ebd")}
V1_BASE |= {"model_type": "deberta", "architectures": ["DebertaForMaskedLM"]}


def again(variant, config):
    return read_config(variant, {"model_type": variant.model_type, **write_config(variant, config)}, frozenset())


def test_the_settings_of_v3_base_are_read_and_written():
    config = read_config(V2, V3_BASE, frozenset())
    assert (config.positions, config.relative_buckets, config.relative_max_distance) == ("disentangled", 256, 512)
    assert config.scale == (3 * 64) ** -0.5
    assert again(V2, config) == config


def test_the_convolution_of_v2_is_read_and_written():
    config = read_config(V2, {**V3_BASE, "conv_kernel_size": 3, "conv_act": "gelu"}, frozenset())
    assert (config.conv_kernel, config.conv_activation) == (3, "gelu")
    assert again(V2, config) == config


def test_the_settings_of_v1_base_are_read_and_written():
    config = read_config(V1, V1_BASE, frozenset())
    assert (config.relative_buckets, config.relative_log, config.relative_norm) == (512, False, False)
    assert (config.share_relative_proj, config.key_bias, config.qkv_bias) == (False, False, True)
    assert again(V1, config) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups=2, which is not supported: expected 1"),
        ({"norm_rel_ebd": "other"}, "norm_rel_ebd='other', which is not supported: expected one of layer_norm, none"),
        ({"pos_att_type": None}, "pos_att_type=.., which is not supported: expected 'p2c.c2p'"),
        ({"position_biased_input": None}, "position_biased_input=None, which is not supported: expected False"),
    ],
)
def test_other_settings_are_refused_by_name(change, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read_config(V2, {**V3_BASE, **change}, frozenset())


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_published_files_hold_unused_positions_and_the_heads_of_the_first_training(family, tmp_path):
    seed = first_seed(family)
    drawn = draw(family, seed)
    drawn.class_name = type(drawn.config).__name__.removesuffix("Config") + "ForTokenClassification"
    theirs = save(drawn, tmp_path, seed)
    more = (
        "deberta.embeddings.position_embeddings.weight",
        "lm_predictions.lm_head.bias",
        "mask_predictions.dense.bias",
    )
    change_tensors(tmp_path, lambda tensors: tensors.update({name: torch.ones(3) for name in more}))
    assert same_numbers(load_model(tmp_path), theirs, seed)
