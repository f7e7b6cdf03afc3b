"""Scaled rotary frequencies, beside those of HF."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from glassformer.nn import Rotary
from glassformer.nn.rotary_scaling import RotaryScaling, rotary_frequencies

KINDS = {
    "linear": RotaryScaling(kind="linear", factor=3.0),
    "llama3": RotaryScaling(kind="llama3", factor=8.0, original_len=8192),
    "yarn": RotaryScaling(kind="yarn", factor=4.0, original_len=4096, high_rotations=32.0),
    "longrope": RotaryScaling(kind="longrope", factor=32.0, original_len=4096, divisors=[1.0 + i for i in range(32)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_amplitude_are_hfs(kind):
    scaling = KINDS[kind]
    table = {"rope_type": kind, "rope_theta": 5e5, "factor": scaling.factor}
    table |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    table |= {"original_max_position_embeddings": scaling.original_len} if kind != "linear" else {}
    if kind == "longrope":
        table |= {"short_factor": [*scaling.divisors], "long_factor": [*scaling.divisors]}
    config = LlamaConfig(head_dim=64, max_position_embeddings=131072, rope_parameters=table)
    expected, amplitude = ROPE_INIT_FUNCTIONS[kind](config)
    found = scaling.scale(rotary_frequencies(64, 5e5), 5e5)
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=0)
    assert scaling.amplitude == pytest.approx(amplitude)


def test_dynamic_scaling_changes_nothing_within_the_models_limit():
    plain = rotary_frequencies(8, 100.0)
    assert RotaryScaling(kind="dynamic", factor=4.0).scale(plain, 100.0) == plain


def test_part_of_a_head_is_rotated_and_the_rest_stays():
    x = torch.randn(2, 3, 5, 8)
    rotation = Rotary(6)(torch.arange(5)[None])
    found = rotation.rotate(x)
    assert torch.equal(found[..., 6:], x[..., 6:])
    torch.testing.assert_close(found[..., :6], rotation.rotate(x[..., :6].contiguous()))
