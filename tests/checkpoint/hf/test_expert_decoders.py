"""HF's decoders with experts: published configs, and settings that are refused by name."""

import pytest
import torch
from safetensors.torch import load_file

from checkpoint import random_hf
from checkpoint.hf_comparison import first_seed, save
from glassformer.checkpoint.hf import FAMILIES, family_of
from glassformer.checkpoint.hf.expert_decoders import expert_names
from glassformer.checkpoint.limits import effective_settings
from glassformer.models import preset
from glassformer.models.costs import count_active_parameters, count_parameters
from glassformer.pipelines.conversion import convert

SIZES = {"vocab_size": 40, "hidden_size": 8, "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES["num_key_value_heads"] = 2
QWEN3_30B = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
}
"""Values of the config.json of Qwen3-30B-A3B."""


def read(kind, **values):
    return FAMILIES[kind].read_config({"model_type": kind, **SIZES, **values}, frozenset())


def test_a_published_config_has_the_published_numbers_of_parameters():
    config = read("qwen3_moe", **QWEN3_30B)
    assert count_parameters(config) == 30_532_122_624
    assert count_active_parameters(config) == 3_353_032_704
    assert round(count_active_parameters(preset("mixtral")) / 1e9, 1) == 12.9


@pytest.mark.parametrize("name", ["mixtral", "olmoe", "qwen2-moe"])
def test_a_preset_is_written_as_its_family_and_read_back(name):
    config = preset(name)
    family = family_of(config)
    assert family.model_type == name.replace("-", "_")
    again = family.read_config({"model_type": family.model_type, **family.write_config(config)}, frozenset())
    assert effective_settings(again) == effective_settings(config)
    assert again.expert_balance == config.expert_balance


def test_layers_without_experts_are_read():
    assert read("qwen3_moe", decoder_sparse_step=2).dense_layers == (0, 2)
    assert read("qwen3_moe", mlp_only_layers=[2]).dense_layers == (2,)
    assert read("qwen2_moe", mlp_only_layers=[0], decoder_sparse_step=3).dense_layers == (0, 1)


def test_windows_are_read():
    assert read("mixtral").sliding_window is None
    alternate = read("qwen2_moe", use_sliding_window=True)
    assert (alternate.sliding_window, alternate.global_layers) == (4096, (1,))
    assert read("qwen3_moe", use_sliding_window=True, sliding_window=7).sliding_window == 7
    assert read("qwen3_moe", sliding_window=7).sliding_window is None


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("mixtral", {"num_local_experts": 0}, "num_local_experts=0: expected at least 1"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise=0.1, which is not supported"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv=8.0, which is not supported"),
        ("olmoe", {"num_experts": 4}, "experts_per_token=8: expected at most n_experts, 4"),
        ("qwen3_moe", {"mlp_only_layers": "0"}, "mlp_only_layers='0': expected a list of numbers of layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0: expected at least 1"),
    ],
)
def test_settings_that_the_blocks_lack_are_refused_by_name(kind, values, message):
    with pytest.raises(ValueError, match=message):
        read(kind, **values)


def test_tensors_have_the_names_that_hf_ships():
    mixtral, qwen = expert_names("mixtral", 2), expert_names("qwen2_moe", 2)
    assert mixtral["ffn.experts.1.up_proj"] == "block_sparse_moe.experts.1.w3"
    assert qwen["ffn.experts.1.up_proj"] == "mlp.experts.1.up_proj"
    assert qwen["ffn.shared_gate"] == "mlp.shared_expert_gate"


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
def test_a_model_is_written_back_to_the_same_bits(family, tmp_path):
    seed = first_seed(family)
    save(random_hf.draw(family, seed), tmp_path / "theirs", seed)
    convert(tmp_path / "theirs", tmp_path / "ours", "hf")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
