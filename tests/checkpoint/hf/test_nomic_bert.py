"""NomicBERT: the two forms of its config, and its two prefixes."""

import json
import shutil

import pytest
import transformers
from safetensors.torch import load_file, save_file

from checkpoint import random_hf
from checkpoint.hf_comparison import same_numbers, save
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.nomic_bert import read_config, write_config
from glassformer.checkpoint.hf.values import UnsupportedModelError

OWN = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 30528,
}


def test_the_config_of_the_models_own_code_is_read():
    config = read_config(OWN, frozenset())
    assert (config.d_model, config.n_heads, config.d_ff, config.n_encoder_layers) == (768, 12, 3072, 12)
    assert (config.rope_theta, config.max_len, config.activation, config.gated) == (1000.0, 8192, "silu", True)
    assert read_config({"model_type": "nomic_bert", **write_config(config)}, frozenset()) == config


def test_scaled_positions_limit_the_length():
    assert read_config({**OWN, "rotary_scaling_factor": 2}, frozenset()).max_len == 2048


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prenorm": True}, "prenorm=True, which is not supported: expected False"),
        ({"activation_function": "gelu"}, "activation_function='gelu', which is not supported: expected one of swiglu"),
        ({"moe_every_n_layers": 2}, "moe_every_n_layers=2, which is not supported"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction=0.5, which is not supported"),
    ],
)
def test_other_settings_are_refused_by_name(change, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read_config({**OWN, **change}, frozenset())


def test_a_model_with_the_prefix_and_the_config_of_its_own_code_gives_hfs_outputs(tmp_path):
    sizes = {"vocab_size": 41, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.NomicBertConfig(**sizes, intermediate_size=10, pad_token_id=1)
    theirs = save(random_hf.Drawn(config, "NomicBertForMaskedLM", None), tmp_path / "hf", 0)
    shutil.copytree(tmp_path / "hf", tmp_path / "own")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    renamed = {name.replace("nomic_bert.", "bert."): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "own" / "model.safetensors")
    small = {"n_embd": 8, "n_head": 2, "n_inner": 10, "n_layer": 2, "vocab_size": 41}
    values = {**OWN, **small, "architectures": ["NomicBertForMaskedLM"]}
    (tmp_path / "own" / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert same_numbers(load_model(tmp_path / "own"), theirs, 0)
