"""Values of config.json: keys, types, and refused values."""

from functools import partial

import pytest

from checkpoint.hf_comparison import InMemory, make, values_of
from glassformer.checkpoint.hf import import_model
from glassformer.checkpoint.hf.values import (
    UnsupportedModelError,
    has_lm_head,
    read_bool,
    read_choice,
    read_float,
    read_int,
    read_n_heads,
    read_rope_theta,
)


def test_old_and_new_keys_mean_the_same():
    theirs = make("llama", 0)
    new = values_of(theirs)
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "dtype")}
    old |= {"rope_theta": new["rope_parameters"]["rope_theta"], "torch_dtype": "float32", "rope_scaling": None}
    tensors = InMemory(theirs.state_dict())
    assert import_model(old, tensors).config == import_model(new, tensors).config


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (read_int, True, r"size=True: expected a whole number, at most 2147483647"),
        (read_int, 2**31, "expected a whole number, at most 2147483647"),
        (partial(read_float, default=1.0), float("nan"), "size=nan: expected a finite number"),
        (partial(read_bool, default=False), 1, "size=1: expected true or false"),
        (partial(read_n_heads, width=8), 9, "size=9: expected at least 1, at most 8, the width"),
        (partial(read_choice, default="a", known={"a": 1, "b": 2}), "c", "size='c', which is not supported: .* a, b"),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_by_its_key(read, value, message):
    with pytest.raises(ValueError, match=message):
        read({"size": value}, "size")


def test_the_first_present_key_counts_and_null_is_absent():
    assert read_int({"old": 3, "new": None}, "new", "old") == 3
    assert read_int({"new": None}, "new", "old", default=7) == 7
    with pytest.raises(ValueError, match=r"config\.json has no 'new' or 'old': expected one"):
        read_int({}, "new", "old")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters of type 'yarn', not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear', not supported"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters per layer type, not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5, which is not supported"),
    ],
)
def test_scaled_rotary_positions_are_refused(values, message):
    assert read_rope_theta({"rope_theta": 5e5}) == 5e5
    with pytest.raises(UnsupportedModelError, match=message):
        read_rope_theta(values)


def test_a_class_with_another_head_is_refused():
    assert has_lm_head({}, "GPT2Model", "GPT2LMHeadModel")
    assert not has_lm_head({"architectures": ["GPT2Model"]}, "GPT2Model", "GPT2LMHeadModel")
    with pytest.raises(UnsupportedModelError, match="whose head is not supported: expected GPT2LMHeadModel or GPT2Mod"):
        has_lm_head({"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2Model", "GPT2LMHeadModel")
