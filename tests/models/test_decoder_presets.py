"""Presets of decoders have the parameter counts of the published models."""

import pytest

from glassformer.models import preset
from glassformer.models.costs import count_parameters

KNOWN = {
    "pythia": 162_322_944,
    "gpt-j": 6_050_882_784,
    "phi-2": 2_779_683_840,
    "falcon-7b": 6_921_720_704,
    "command-r": 34_980_831_232,
    "gemma": 2_506_172_416,
    "gemma-2": 2_614_341_888,
    "gemma-3": 999_885_952,
    "qwen3": 596_049_920,
    "olmo": 1_176_764_416,
    "olmo-2": 1_484_916_736,
    "smollm3": 3_075_098_624,
    "mixtral": 46_702_792_704,
    "olmoe": 6_919_161_856,
    "qwen2-moe": 14_315_784_192,
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_preset_has_the_published_parameter_count(name):
    assert count_parameters(preset(name)) == KNOWN[name]
