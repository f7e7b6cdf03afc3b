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
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_preset_has_the_published_parameter_count(name):
    assert count_parameters(preset(name)) == KNOWN[name]
