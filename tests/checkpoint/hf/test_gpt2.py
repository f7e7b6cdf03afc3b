"""GPT-2: fused and transposed matrices, and refused settings."""

import pytest
import torch
import transformers

from checkpoint import hf_models
from checkpoint.hf_comparison import open_theirs, same_numbers
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf import export_model
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.hf.gpt2 import read_config, write_config
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.models import build_model, preset


def test_q_k_and_v_are_stored_in_one_transposed_matrix():
    model = build_model(preset("tiny-gpt2"))
    _, tensors = export_model(model)
    attention = model.decoder.layers[0].self_attn
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    expected = torch.cat([part.weight for part in parts]).T
    assert torch.equal(tensors["transformer.h.0.attn.c_attn.weight"], expected)
    assert torch.equal(tensors["transformer.h.0.attn.c_attn.bias"], torch.cat([part.bias for part in parts]))
    assert torch.equal(tensors["transformer.h.0.mlp.c_fc.weight"], model.decoder.layers[0].ffn.up_proj.weight.T)
    assert "lm_head.weight" not in tensors, "the output is tied"


def test_a_written_config_is_read_back():
    config = read_config({"n_embd": 16, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False}, frozenset())
    assert (config.d_model, config.n_decoder_layers, config.n_heads, config.tie) == (16, 2, 4, "none")
    assert read_config(write_config(config), frozenset()) == config


def test_an_absent_feed_forward_width_is_four_times_the_model_width():
    assert read_config({"n_embd": 24, "n_head": 2, "n_inner": None}, frozenset()).d_ff == 96


def test_cross_attention_is_refused():
    with pytest.raises(UnsupportedModelError, match="add_cross_attention=True, which is not supported"):
        read_config({"add_cross_attention": True}, frozenset())


@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize("by_depth", [True, False])
def test_both_settings_of_the_attention_scale_are_read_and_written(is_scaled, by_depth, tmp_path):
    sizes = {"vocab_size": 37, "n_positions": 28, "n_embd": 8, "n_layer": 3, "n_head": 2, "pad_token_id": 1}
    config = transformers.GPT2Config(
        **sizes, scale_attn_weights=is_scaled, scale_attn_by_inverse_layer_idx=by_depth, bos_token_id=0, eos_token_id=0
    )
    theirs = hf_models.make(config, "GPT2LMHeadModel", 0)
    theirs.save_pretrained(tmp_path / "saved")
    ours = load_model(tmp_path / "saved")
    assert (ours.config.attention_scale, ours.config.scale_by_depth) == (None if is_scaled else 1.0, by_depth)
    assert same_numbers(ours, theirs, 0)
    save_hf_folder(tmp_path / "again", ours, values={"pad_token_id": 1})
    again, _ = open_theirs(tmp_path / "again", "GPT2LMHeadModel")
    assert same_numbers(ours, again, 0)
