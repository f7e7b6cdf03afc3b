"""Layers that differ in attention: windows and rotary positions in `config.json`."""

import pytest
import torch
import transformers

from checkpoint.hf_comparison import same_numbers
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf.layer_kinds import (
    FULL,
    SLIDING,
    Windows,
    pattern_windows,
    qwen_windows,
    read_two_rotaries,
    unrotated_layers,
)
from glassformer.checkpoint.hf.values import UnsupportedModelError

LAYERS = {"num_hidden_layers": 4}
MIXED = Windows(4, (1,))


def test_windows_follow_the_pattern_or_the_list():
    assert pattern_windows(LAYERS, 2) == Windows(4096, (1, 3))
    assert pattern_windows({**LAYERS, "sliding_window": 5, "pattern": 3}, 2, key="pattern") == Windows(5, (2,))
    assert pattern_windows({**LAYERS, "layer_types": [FULL] * 4}, 2) == Windows(None, ())
    assert pattern_windows({**LAYERS, "layer_types": [SLIDING] * 4}, 2) == Windows(4096, ())
    qwen = {**LAYERS, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3}
    assert qwen_windows(qwen) == Windows(5, (0, 1, 2))
    assert qwen_windows({**qwen, "use_sliding_window": False}) == Windows(None, ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types=.*expected a list of 'full_attention' and 'sliding"),
        ({"layer_types": [FULL]}, "expected a list .* for each of the 4 layers"),
        ({"sliding_window": None}, "'sliding_attention' in layer_types without a sliding window"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers=2147483647: expected from 1 to 65536"),
    ],
)
def test_other_lists_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        pattern_windows({**LAYERS, **change}, 2)


def test_layers_without_rotary_positions_are_listed_or_at_an_interval():
    assert unrotated_layers(LAYERS) == (3,)
    assert unrotated_layers({**LAYERS, "no_rope_layer_interval": 2}) == (1, 3)
    assert unrotated_layers({**LAYERS, "no_rope_layers": [0, 1, 1, 0]}) == (0, 3)
    with pytest.raises(ValueError, match=r"no_rope_layers=\[2, 1\]: expected 0 or 1 for each"):
        unrotated_layers({**LAYERS, "no_rope_layers": [2, 1]})


def test_layers_with_a_window_may_have_their_own_base():
    def read(values, windows=MIXED):
        return read_two_rotaries(values, 8, windows, theta=1e6, local_theta=1e4)

    found = read({})
    assert (found["rope_theta"], found["local_rope_theta"]) == (1e6, 1e4)
    old = read({"rope_theta": 5e5, "rope_local_base_freq": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert (old["rope_theta"], old["local_rope_theta"], old["rope_scaling"]) == (5e5, 7.0, "linear")
    assert read({}, Windows(4, ()))["rope_theta"] == 1e4
    assert "local_rope_theta" not in read({}, Windows(None, ()))
    same = {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0}
    assert "local_rope_theta" not in read({"rope_parameters": {FULL: same, SLIDING: same}})
    with pytest.raises(UnsupportedModelError, match="'sliding_attention': expected the type 'default'"):
        read({"rope_parameters": {SLIDING: same}})
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters=.*expected a table each for"):
        read({"rope_parameters": same})


def test_a_window_in_some_layers_only_gives_hfs_outputs(tmp_path):
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 30, "pad_token_id": 1}
    window = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}
    torch.manual_seed(0)
    theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **heads, **window)).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert (ours.config.sliding_window, ours.config.global_layers) == (3, (0, 1))
    assert same_numbers(ours, theirs, 0)
