"""A random Llama or Qwen survives the export to GGUF, or is refused by name."""

import shutil

import pytest

from checkpoint import random_hf
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.pipelines.agreement import verify
from glassformer.pipelines.conversion import convert


def make_expressible(drawn, family):
    """Remove the settings that llama.cpp does not support; keep the others."""
    drawn.class_name = type(drawn.config).__name__.removesuffix("Config") + "ForCausalLM"
    drawn.config.hidden_act, drawn.config.sliding_window, drawn.config.use_sliding_window = "silu", None, False
    drawn.config.layer_types = ["full_attention"] * drawn.config.num_hidden_layers
    if drawn.config.rope_parameters["rope_type"] not in ("linear", "llama3"):
        drawn.config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}
    if family == "qwen3":
        drawn.config.attention_bias = False
    if family == "qwen2":
        drawn.config.head_dim = drawn.config.hidden_size // drawn.config.num_attention_heads


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_random_model_round_trips_or_is_refused(family, tmp_path, count, monkeypatch):
    monkeypatch.setattr("glassformer.pipelines.agreement.is_installed", lambda name: name == "transformers")
    seeds = (seed for seed in range(10_000) if random_hf.draw(family, seed).refusal is None)
    tally = {"written": 0, "refused": 0}
    for seed, index in zip(seeds, range(count(4, 100)), strict=False):
        drawn = random_hf.draw(family, seed)
        if index % 2:
            make_expressible(drawn, family)
        random_hf.build(drawn, seed).save_pretrained(tmp_path / "hf")
        config, out = load_model(tmp_path / "hf").config, tmp_path / "model.gguf"
        is_refused = (
            config.activation != "silu"
            or config.sliding_window is not None
            or config.rope_scaling == "dynamic"
            or (config.rope_scaling == "yarn" and config.rope_high_rotations != 32.0)
            or (config.rope_scaling == "yarn" and config.rope_attention_factor is not None)
            or config.rope_scaling == "longrope"  # with divisors that differ, in these draws
            or config.head == "none"
            or (family == "qwen3" and config.qkv_bias)
            or (family == "qwen2" and config.head_size * config.n_heads != config.d_model)
        )
        if is_refused:
            with pytest.raises(
                UnsupportedModelError, match=r"activation=|sliding_window=|head=|qkv_bias=|head_dim=|qk_norm=|rope_"
            ):
                convert(tmp_path / "hf", out, "gguf", numbers="f32")
            assert not out.exists()
        else:
            model = convert(tmp_path / "hf", out, "gguf", numbers="f32")
            found = verify(tmp_path / "hf", model, out, "gguf", numbers="f32")
            assert found.reference == "HF Transformers"
            found.check(out)
            out.unlink()
        tally["refused" if is_refused else "written"] += 1
        shutil.rmtree(tmp_path / "hf")
    print(family, tally)
    assert min(tally.values()) > 0
