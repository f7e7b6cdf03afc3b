"""Attention masks: which keys each query may attend to."""

import pytest
import torch

from glassformer.nn import Mask


def test_causal_queries_are_aligned_with_the_last_keys():
    seen = Mask(causal=True).dense(2, 5, torch.device("cpu"))[0, 0]
    assert seen.tolist() == [[True, True, True, True, False], [True] * 5]


def test_masks_of_another_dtype_are_refused():
    with pytest.raises(TypeError, match=r"mask real has dtype torch.int64: expected torch.bool"):
        Mask(real=torch.ones(2, 3, dtype=torch.long))
