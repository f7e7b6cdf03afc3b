"""Matrices are rounded to three bits of mantissa, row by row. With a GPU, the kernels equal the formula."""

import pytest
import torch

from glassformer.kernels.float8_rows import E4M3, quantize, quantize_rows

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
EPSILON = 2.0**-4
"""Half the distance between neighboring numbers of e4m3, relative to them."""


def test_rows_are_rounded_to_three_bits_of_mantissa():
    x = torch.randn(5, 64) * torch.tensor([1e-6, 1e-2, 1.0, 1e3, 1e20])[:, None]
    numbers, factors = quantize_rows(x)
    assert numbers.dtype == E4M3
    restored = numbers.float() * factors
    smallest = factors * 2.0**-10  # below the normal numbers of e4m3, the distance is constant
    assert ((restored - x).abs() <= torch.maximum(EPSILON * x.abs(), smallest)).all()
    torch.testing.assert_close(restored.abs().amax(1), x.abs().amax(1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(5, 64), (100, 130)])
def test_kernels_equal_the_formula(device, transposed, shape):
    x = torch.randn(shape, device=device, dtype=torch.bfloat16)
    found, right = quantize(x, transposed=transposed), quantize_rows(x.t() if transposed else x)
    assert found.numbers.is_contiguous()
    torch.testing.assert_close(found.factors, right.factors)
    torch.testing.assert_close(found.numbers.float(), right.numbers.float(), rtol=2 * EPSILON, atol=2.0**-9)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_zeros_stay_zeros_and_nan_is_not_hidden(device):
    x = torch.zeros(3, 16, device=device)
    x[1, 3], x[2, 3] = torch.nan, torch.inf
    numbers, factors = quantize(x)
    assert (numbers[0].float() * factors[0] == 0).all()
    assert (numbers[1:].float() * factors[1:]).isnan().any(1).all()
