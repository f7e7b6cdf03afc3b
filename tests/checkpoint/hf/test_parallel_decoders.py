"""GPT-NeoX, GPT-J, Phi and Falcon: config values."""

import pytest

from glassformer.checkpoint.hf import FAMILIES
from glassformer.checkpoint.hf.values import UnsupportedModelError

SIZES = {"vocab_size": 40, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8}
FALCON = {**SIZES, "model_type": "falcon"}
PUBLISHED = {
    "Pythia": ({**SIZES, "model_type": "gpt_neox", "intermediate_size": 9, "rotary_pct": 0.25}, "two_norms", 8, 2),
    "sequential": (
        {**SIZES, "model_type": "gpt_neox", "intermediate_size": 9, "use_parallel_residual": False},
        "none",
        8,
        2,
    ),
    "GPT-J": ({"model_type": "gptj", "n_embd": 64, "n_head": 8, "rotary_dim": 4}, "one_norm", 8, 4),
    "Phi-2": ({**SIZES, "model_type": "phi", "intermediate_size": 9}, "one_norm", 8, 4),
    "Falcon 7B": (FALCON, "one_norm", 1, 8),
    "Falcon 40B": ({**FALCON, "new_decoder_architecture": True, "num_kv_heads": 4}, "two_norms", 4, 8),
    "Falcon 2": (
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1},
        "one_norm",
        4,
        8,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_form_of_the_layers_is_read_and_written(name):
    values, form, n_kv_heads, n_rotated = PUBLISHED[name]
    family = FAMILIES[values["model_type"]]
    config = family.read_config(values, frozenset())
    assert (config.parallel_ffn, config.kv_heads, config.rope_size) == (form, n_kv_heads, n_rotated)
    assert family.read_config({"model_type": family.model_type, **family.write_config(config)}, frozenset()) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alibi": True}, "alibi=True, which is not supported: expected False"),
        ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn=2, which is not supported: expected 1"),
        ({"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn=False, which is not supported"),
        ({"head_dim": 5}, "head_dim=5, which is not supported: expected 8"),
    ],
)
def test_other_forms_of_falcon_are_refused_by_name(change, message):
    with pytest.raises(UnsupportedModelError, match=message):
        FAMILIES["falcon"].read_config({**FALCON, **change}, frozenset())
