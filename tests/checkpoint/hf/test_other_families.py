"""Families that do not fit the blocks are refused with the reason why."""

import pytest
import transformers

from glassformer.checkpoint.hf import FAMILIES, family_by_type
from glassformer.checkpoint.hf.other_families import LACKING
from glassformer.checkpoint.hf.values import UnsupportedModelError


def test_the_families_are_hfs_and_not_ours():
    named = {name for families in LACKING.values() for name in families}
    assert named <= {*transformers.CONFIG_MAPPING.keys()}
    assert not named & FAMILIES.keys()


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("phimoe", "model_type='phimoe', which has a mixture of experts of another kind, not supported: expected one"),
        ("whisper", "model_type='whisper', which has audio, not supported: expected one of"),
        ("mamba", "model_type='mamba', which has state-space or recurrent layers, not supported"),
        ("gemma3", "model_type='gemma3', which has images, not supported"),
        ("lama", r"model_type='lama' \(did you mean 'llama'\?\): expected one of"),
    ],
)
def test_a_family_that_does_not_fit_is_refused_by_name(model_type, message):
    with pytest.raises(UnsupportedModelError, match=message):
        family_by_type(model_type)
