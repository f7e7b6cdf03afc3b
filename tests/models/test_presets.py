"""Full-size presets have the known parameter counts, and unknown names are refused."""

import math

import pytest

from glassformer import reference
from glassformer.models import preset

# Counts of the original implementations, with two differences. Their BART and Marian do not count the output bias,
# which is a parameter here. Their Marian counts its two fixed tables of sinusoids, which are no parameters here.
KNOWN = {
    "transformer-base": 63_082_496,  # the paper rounds its count to 65 million
    "bert-base": 109_514_298,
    "albert-base": 11_221_680,
    "gpt2": 124_439_808,
    "llama": 134_515_008,
    "t5-small": 60_506_624,
    "t5-v1.1-small": 76_961_152,
    "bart-base": 139_420_416 + 50_265,
    "marian": 74_410_496 - 2 * 512 * 512 + 58_101,
}


@pytest.mark.parametrize("name", KNOWN)
def test_presets_have_the_known_parameter_counts(name):
    shapes = reference.parameter_shapes(reference.Config.from_dict(preset(name).to_dict()))
    assert sum(math.prod(shape) for shape in shapes.values()) == KNOWN[name]


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"unknown preset 'GPT-2': did you mean 'gpt2'\?"):
        preset("GPT-2")


def test_a_preset_takes_changes_and_refuses_unknown_ones():
    assert preset("gpt2", n_decoder_layers=3).n_decoder_layers == 3
    with pytest.raises(ValueError, match="unknown config key"):
        preset("gpt2", n_layer=3)
