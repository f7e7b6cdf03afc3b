"""GPT-2: fused and transposed matrices, and refused settings."""

import pytest
import torch

from glassformer.checkpoint.hf import export_model
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


def test_attention_that_is_scaled_by_layer_is_refused():
    with pytest.raises(UnsupportedModelError, match="scale_attn_by_inverse_layer_idx=True, which is not supported"):
        read_config({"scale_attn_by_inverse_layer_idx": True}, frozenset())
