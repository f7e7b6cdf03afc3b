"""Rotary positions in config.json: old and new keys, and what is refused."""

import random

import pytest

from checkpoint import random_hf
from glassformer.checkpoint.hf.rotary_values import read_rotary, write_rotary
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.models import preset

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def test_old_and_new_keys_of_scaled_positions_mean_the_same():
    length = {"max_position_embeddings": 131072}
    new = {**length, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}
    old = {**length, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    found = read_rotary(new, 64)
    assert found == read_rotary(old, 64)
    assert (found["rope_scaling"], found["rope_factor"], found["rope_original_len"]) == ("llama3", 8.0, 8192)
    assert read_rotary({"rope_theta": 5e5}, 64)["rope_theta"] == 5e5


@pytest.mark.parametrize("seed", range(20))
def test_written_values_are_read_back(seed):
    length = 28
    values = {"max_position_embeddings": length, "rope_parameters": random_hf.rope(random.Random(seed), 4, length)}
    config = preset("tiny-llama", **read_rotary(values, 4))
    assert preset("tiny-llama", **read_rotary(write_rotary(config), 4)) == config


@pytest.mark.parametrize("width", range(2, 66, 2))
def test_a_rotated_part_of_a_head_is_read_back_exactly(width):
    config = preset("tiny-llama", head_dim=66, rope_width=width)
    assert read_rotary(write_rotary(config), 66, part=1.0)["rope_width"] == width


def test_longrope_is_limited_to_the_length_of_its_short_divisors():
    table = {"type": "su", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}
    values = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_scaling": table}
    config = preset("tiny-llama", **read_rotary(values, 4))
    assert (config.max_len, config.rope_factor) == (4096, 32.0)
    assert config.rotary_scaling.divisors == (1.0, 2.0)
    assert preset("tiny-llama", **read_rotary(values, 4) | {"max_len": 131072}).rotary_scaling.divisors == (3.0, 4.0)
    assert write_rotary(config)["max_position_embeddings"] == 131072


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_parameters": {"rope_type": "axial"}}, "rotary positions of type 'axial', not supported"),
        ({"rope_scaling": {"type": "mrope"}}, "rotary positions of type 'mrope', not supported"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters per layer type, not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5, not supported for this family"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate=False, not supported"),
    ],
)
def test_other_rotary_positions_are_refused(values, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read_rotary(values, 4)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"short_factor": "12", "long_factor": [1.0]}, "short_factor='12': expected a list of numbers"),
        ({"short_factor": [1.0, None], "long_factor": [1.0]}, None),
        ({"long_factor": [1.0]}, "no 'short_factor'"),
    ],
)
def test_divisors_that_are_no_numbers_are_refused(table, message):
    values = {"rope_scaling": {"rope_type": "longrope", **table}}
    with pytest.raises(ValueError, match=message):
        preset("tiny-llama", **read_rotary(values, 4))
