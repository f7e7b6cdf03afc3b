"""Attention masks: which keys each query may attend to."""

import pytest
import torch

from glassformer.nn import Mask, as_mask


def test_causal_queries_are_aligned_with_the_last_keys():
    seen = Mask(causal=True).dense(2, 5, torch.device("cpu"))[0, 0]
    assert seen.tolist() == [[True, True, True, True, False], [True] * 5]


def test_masks_of_another_dtype_are_refused():
    with pytest.raises(TypeError, match=r"mask real has dtype torch.int64: expected torch.bool"):
        Mask(real=torch.ones(2, 3, dtype=torch.long))


CPU = torch.device("cpu")


def test_a_mask_without_rules_needs_no_tensor():
    assert Mask().dense(3, 3, CPU) is None
    assert Mask(causal=True).dense(1, 5, CPU) is None, "a single query may attend to all keys"


def test_all_rules_must_allow_a_key():
    real = torch.tensor([[True, True, False, True]])
    seen = Mask(causal=True, window=2, real=real).dense(4, 4, CPU)[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]


def test_packed_documents_do_not_attend_to_each_other():
    segments = torch.tensor([[0, 0, 1]])
    seen = Mask(query_segments=segments, key_segments=segments).dense(3, 3, CPU)[0, 0]
    assert seen.int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_the_additive_form_is_the_bias_or_minus_infinity():
    bias = torch.tensor([[[[0.5, 0.25], [1.0, 2.0]]]])
    mask = Mask(causal=True).with_additive(2, 2, bias, torch.zeros(1))
    assert mask.additive.values[0, 0].tolist() == [[0.5, -torch.inf], [1.0, 2.0]]
    assert Mask(causal=True).with_additive(2, 2, None, torch.zeros(1)).additive is None, "kernels take it as a flag"


def test_numbers_become_a_mask_only_if_they_are_0_or_1():
    assert as_mask("mask", torch.tensor([1.0, 0.0])).tolist() == [True, False]
    with pytest.raises(ValueError, match="mask holds -inf: expected True/False or 1/0"):
        as_mask("mask", torch.tensor([0.0, -torch.inf]))
