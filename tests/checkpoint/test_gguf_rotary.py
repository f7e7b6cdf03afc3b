"""Scaled rotary positions survive GGUF, and llama.cpp's rope_freqs.weight is read as it is meant."""

import math

import numpy as np
import pytest
import torch

from checkpoint.small_gguf import random_tensors, shapes, write
from glassformer.checkpoint import load_model
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.gguf_file import read_gguf
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.models import build_model, preset
from oracle import random_model

LLAMA3 = {"rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_len": 16}
LONG = {"rope_scaling": "longrope", "rope_original_len": 32, "rope_attention_factor": 1.0, "rope_factor": 2.0}
LONG |= {"rope_short_divisors": (1.0, 3.0), "rope_long_divisors": (1.0, 3.0)}
YARN = {"rope_scaling": "yarn", "rope_factor": 2.0, "rope_original_len": 16, "rope_high_rotations": 32.0}


@pytest.mark.parametrize("scaling", [{"rope_scaling": "linear", "rope_factor": 2.5}, LLAMA3, LONG, YARN])
def test_a_scaled_model_gives_the_same_logits_from_gguf(scaling, tmp_path):
    model = random_model(preset("tiny-llama", rope_theta=50.0, **scaling), dtype=torch.float32)
    write_gguf(tmp_path / "model.gguf", model, numbers="f32")
    again = load_model(tmp_path / "model.gguf")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(again(tokens), model(tokens), atol=2e-5, rtol=1e-5)
        plain = build_model(preset("tiny-llama", rope_theta=50.0)).eval()
        plain.load_state_dict(model.state_dict())
        assert (plain(tokens) - model(tokens)).abs().max() > 1e-3  # the scaling has an effect


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_scaling": "dynamic", "rope_factor": 2.0}, "rope_scaling='dynamic' .expected 'none' or 'linear'"),
        (YARN | {"rope_high_rotations": 8.0}, "rope_high_rotations=8.0 .expected 32.0"),
        (YARN | {"rope_attention_factor": 0.5}, "rope_attention_factor=0.5 .expected None"),
        (LONG | {"rope_attention_factor": None}, "rope_attention_factor=1.0.* .expected 1"),
        (LONG | {"rope_long_divisors": (1.0, 2.0)}, "rope_long_divisors .expected those in rope_short_divisors"),
        ({"rope_width": 2}, "partial_rotary_factor=0.5, not supported"),
    ],
)
def test_scaling_that_llama_cpp_cannot_express_is_refused_by_name(scaling, message, tmp_path):
    model = build_model(preset("tiny-llama", **scaling))
    with pytest.raises(UnsupportedModelError, match=message):
        write_gguf(tmp_path / "model.gguf", model)


def test_the_tensor_rope_freqs_divides_the_frequencies(tmp_path):
    tensors = random_tensors() | {"rope_freqs.weight": np.array([1, 1, 1, 1, 2, 4, 8, 8], np.float32)}
    opened = read_gguf(write(tmp_path / "model.gguf", tensors=tensors))
    assert "rope_freqs.weight" not in list(opened.tensors.keys())
    config = load_model(tmp_path / "model.gguf").config
    assert config.rotary_scaling.divisors == (1, 1, 1, 1, 2, 4, 8, 8)
    assert config.rotary_scaling.amplitude == 1.0
    assert config.max_len == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_fast": 16.0}, "yarn_beta_fast=16.0: expected 32"),
        ({"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 256}, "from 2 to 128"),
        (
            {"rope.scaling.factor": 2.0, "tensors": random_tensors(shapes() | {"rope_freqs.weight": (8,)})},
            "rope.scaling.type='linear' and rope_freqs.weight: expected one of the two",
        ),
    ],
)
def test_contradictions_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_gguf(write(tmp_path / "model.gguf", **changes))


def test_llama_3_1_has_the_divisors_of_llama_cpps_converter():
    """The first and last of the 64 divisors of Llama 3.1 8B are 1 and 8, and those between grow."""
    scaling = {"rope_factor": 8.0, "rope_original_len": 8192, "rope_scaling": "llama3", "rope_theta": 5e5}
    config = preset("llama", head_dim=128, **scaling)
    from glassformer.nn.rotary_scaling import rotary_frequencies

    plain = rotary_frequencies(128, 5e5)
    found = [one / two for one, two in zip(plain, config.rotary_scaling.scale(plain, 5e5), strict=True)]
    assert (found[0], found[-1]) == (1.0, 8.0)
    assert found == sorted(found)
    between = [i for i, divisor in enumerate(found) if 1 < divisor < 8]
    turns = [8192 * plain[i] / (2 * math.pi) for i in between]
    assert all(1 < turn < 4 for turn in turns)
