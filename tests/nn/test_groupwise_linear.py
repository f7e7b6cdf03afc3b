"""Layers with group-wise quantized weights are close to the float layers that they replace."""

import pytest
import torch
from torch import nn

from glassformer.kernels.groupwise_matrix import GroupwiseFormat
from glassformer.nn.groupwise_linear import (
    GroupwiseEmbedding,
    GroupwiseLinear,
    number_dtype_for,
    quantize_rows,
    quantized_linear,
)

NIBBLES = GroupwiseFormat(4, has_mins=True)
BYTES = GroupwiseFormat(8, has_mins=False)


def weight_of(layer):
    return layer.matrix.read_rows(torch.arange(layer.out_features))


@pytest.mark.parametrize(("bits", "steps"), [(4, 15), (8, 254)])
def test_weights_are_off_by_at_most_half_a_step_of_their_group(bits, steps):
    torch.manual_seed(0)
    linear = nn.Linear(96, 40)
    off = (weight_of(quantized_linear(linear, bits)) - linear.weight).view(40, 3, 32)
    groups = linear.weight.detach().view(40, 3, 32)
    spread = groups.amax(2) - groups.amin(2) if bits == 4 else 2 * groups.abs().amax(2)
    # Half a step, and more at the ends of a group whose range is clipped because that has the smaller squared error.
    bound = spread / steps * (0.5 if bits == 8 else 2) * 1.01
    assert (off.abs().amax(2) <= bound).all()
    assert (off.square().mean(2).sqrt() <= spread / steps * 0.4).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_layer_takes_any_width_and_leading_dimensions(bits):
    torch.manual_seed(0)
    linear = nn.Linear(70, 33)
    x = torch.randn(2, 5, 70)
    found, exact = quantized_linear(linear, bits)(x), linear(x)
    assert found.shape == (2, 5, 33)
    assert (found - exact).norm() < (0.1 if bits == 4 else 0.01) * exact.norm()


def test_clipping_has_a_smaller_error_than_the_whole_range(monkeypatch):
    torch.manual_seed(0)
    linear = nn.Linear(256, 64)
    nn.init.normal_(linear.weight)
    chosen = weight_of(quantized_linear(linear, 4))
    monkeypatch.setattr("glassformer.nn.groupwise_linear.CLIPPED_SHARES", (1.0,))
    whole = weight_of(quantized_linear(linear, 4))
    assert (chosen - linear.weight).norm() < (whole - linear.weight).norm()


def test_rounding_again_by_fitted_scales_has_a_smaller_error(monkeypatch):
    torch.manual_seed(0)
    weight = torch.randn(64, 256)
    twice = quantize_rows(weight, NIBBLES).dequantized()
    monkeypatch.setattr("glassformer.nn.groupwise_linear.FITS", 1)
    once = quantize_rows(weight, NIBBLES).dequantized()
    assert (twice - weight).square().sum() < 0.97 * (once - weight).square().sum()


def test_weights_with_16_values_per_group_are_kept_exactly():
    groups = torch.arange(16.0).repeat(2)[torch.randperm(32)]
    weight = torch.stack([groups * 0.5 - 3, groups * 0.25, torch.zeros(32), torch.full((32,), -2.0)])
    assert torch.equal(quantize_rows(weight, NIBBLES).dequantized(), weight)


def test_weights_too_large_or_small_for_float16_have_float32_scales():
    torch.manual_seed(0)
    for size in (1e-12, 1e9):
        linear = nn.Linear(64, 8, bias=False)
        nn.init.normal_(linear.weight, std=size)
        for bits in (4, 8):
            layer = quantized_linear(linear, bits)
            assert layer.matrix.form.number_dtype == torch.float32
            assert (weight_of(layer) - linear.weight).norm() < 0.1 * linear.weight.norm()
    assert number_dtype_for(torch.zeros(2, 32)) == torch.float16


def test_formats_that_nothing_is_rounded_to_are_refused():
    with pytest.raises(ValueError, match="expected 4 bits with minimums, or 8 bits without"):
        quantize_rows(torch.zeros(1, 32), GroupwiseFormat(4, has_mins=False))


def test_an_embedding_shares_the_matrix_of_a_tied_output_layer():
    layer = quantized_linear(nn.Linear(32, 50, bias=False), 8)
    embedding = GroupwiseEmbedding(layer.matrix)
    ids = torch.tensor([[0, 49], [7, 7]])
    assert torch.equal(embedding(ids), weight_of(layer)[ids])
    assert (embedding.num_embeddings, embedding.embedding_dim) == (50, 32)
    assert torch.equal(GroupwiseLinear(layer.matrix)(embedding(ids)), layer(embedding(ids)))
