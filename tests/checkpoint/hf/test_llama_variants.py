"""Families with Llama's names: their own settings of `config.json`."""

import pytest

from glassformer.checkpoint.hf import FAMILIES
from glassformer.checkpoint.hf.llama_variants import VARIANTS
from glassformer.checkpoint.hf.values import UnsupportedModelError

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
EXPECTED = {
    "gemma2": {"norm_placement": "sandwich", "attention_softcap": 50.0, "output_softcap": 30.0, "scale": 1 / 16}
    | {"sliding_window": 4096, "global_layers": (1, 3, 5)},
    "gemma3_text": {"qk_norm": True, "global_layers": (5,), "rope_theta": 1e6, "local_rope_theta": 1e4},
    "olmo": {"norm": "layer", "norm_weight": False, "norm_bias": False, "norm_eps": 1e-5},
    "olmo2": {"norm_placement": "output", "qk_norm_over": "all_heads"},
    "olmo3": {"global_layers": (3,), "local_rope_theta": None, "rope_theta": 5e5},
    "smollm3": {"unrotated_layers": (3,), "rope_theta": 2e6, "sliding_window": None},
    "cohere": {"parallel_ffn": "one_norm", "norm_bias": False, "output_multiplier": 0.0625},
    "cohere2": {"unrotated_layers": (3,), "global_layers": (3,), "sliding_window": 4096},
}


@pytest.mark.parametrize("kind", VARIANTS)
def test_hfs_defaults_are_read_and_written(kind):
    family = FAMILIES[kind]
    config = family.read_config({**SIZES, "model_type": kind}, frozenset())
    assert {name: getattr(config, name) for name in EXPECTED.get(kind, {})} == EXPECTED.get(kind, {})
    assert family.read_config({"model_type": kind, **family.write_config(config)}, frozenset()) == config


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar=0: expected a number above 0"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True, which is not supported"),
        ("gemma3_text", {"attn_logit_softcapping": 9.0}, "attn_logit_softcapping=9.0, which is not supported"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm=True, which is not supported"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm=True, which is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(kind, change, message):
    with pytest.raises((UnsupportedModelError, ValueError), match=message):
        FAMILIES[kind].read_config({**SIZES, "model_type": kind, **change}, frozenset())
