"""The Llama family: config values and sliding windows."""

import json

import pytest

from checkpoint import random_hf
from checkpoint.hf_comparison import first_seed, save
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.llama import read_config, write_config


def test_mistrals_window_is_4096_unless_the_config_has_another(tmp_path):
    drawn = random_hf.draw("mistral", first_seed("mistral"))
    save(drawn, tmp_path, 0)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    for change, window in (({"sliding_window": 7}, 7), ({"sliding_window": None}, None), ({}, 4096)):
        values = {name: value for name, value in whole.items() if name != "sliding_window"}
        path.write_text(json.dumps({**values, **change}), encoding="utf-8")
        assert load_model(tmp_path).config.sliding_window == window


SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("values", "window"),
    [
        ({"model_type": "llama", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, None),
        ({"model_type": "qwen2", "sliding_window": 7}, None),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, 7),
        ({"model_type": "qwen3", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2}, None),
    ],
)
def test_the_window_depends_on_the_family_and_its_switches(values, window):
    assert read_config({**SIZES, **values}, frozenset()).sliding_window == window


def test_some_layers_may_have_a_window():
    values = {**SIZES, "model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 1}
    config = read_config(values, frozenset())
    assert (config.sliding_window, config.global_layers) == (7, (0,))
    written = write_config("qwen2", config)
    assert (written["max_window_layers"], written["layer_types"]) == (1, ["full_attention", "sliding_attention"])


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_a_written_config_is_read_back(kind):
    config = read_config({**SIZES, "model_type": kind, "rope_theta": 5e5}, frozenset())
    assert read_config({"model_type": kind, **write_config(kind, config)}, frozenset()) == config
    assert (config.kv_heads, config.rope_theta, config.qk_norm) == (2, 5e5, kind == "qwen3")
