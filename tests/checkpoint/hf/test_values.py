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
)


def test_old_and_new_keys_mean_the_same():
    theirs = make("llama", 0)
    new = values_of(theirs)
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "dtype")}
    scaling = {key: value for key, value in new["rope_parameters"].items() if key != "rope_theta"}
    old |= {"rope_theta": new["rope_parameters"]["rope_theta"], "torch_dtype": "float32", "rope_scaling": scaling}
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


def test_a_class_with_another_head_is_refused():
    assert has_lm_head({}, "GPT2Model", "GPT2LMHeadModel")
    assert not has_lm_head({"architectures": ["GPT2Model"]}, "GPT2Model", "GPT2LMHeadModel")
    with pytest.raises(UnsupportedModelError, match="whose head is not supported: expected GPT2LMHeadModel or GPT2Mod"):
        has_lm_head({"architectures": ["GPT2DoubleHeadsModel"]}, "GPT2Model", "GPT2LMHeadModel")
