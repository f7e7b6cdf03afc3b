"""Packed arrays come back within their stated error; numbers have six digits."""

import json
import math

import pytest
import torch

from glassformer.inspect.json_values import number, numbers, pack, unpack


def test_packed_arrays_come_back():
    values = torch.randn(3, 4, 5)
    packed = json.loads(json.dumps(pack(values)))
    assert packed["shape"] == [3, 4, 5]
    found = torch.from_numpy(unpack(packed)).float()
    assert (found - values).abs().max() <= 1.6e-5 * values.abs().max()
    assert pack(torch.zeros(2))["scale"] == 1.0
    assert unpack(pack(torch.zeros(0, 2))).shape == (0, 2)


def test_what_is_not_finite_is_refused_or_none():
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        pack(torch.tensor([1.0, math.nan]))
    assert number(math.inf) is None
    assert number(1 / 3) == 0.333333
    assert numbers(torch.tensor([[1.0, 2.5]])) == [[1.0, 2.5]]
