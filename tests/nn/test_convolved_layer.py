"""The convolution beside a layer: neighbors, padding and packed documents."""

import pytest
import torch
from torch import nn

from glassformer.models import build_model, preset
from glassformer.nn.convolved_layer import Convolution


def make(kernel=3):
    torch.manual_seed(0)
    return Convolution(4, kernel, activation="identity", norm=nn.Identity(), dropout=0.0)


def test_each_token_reads_its_neighbors():
    convolution, x, y = make(), torch.randn(1, 5, 4), torch.randn(1, 5, 4)
    found = convolution(x, y, None)
    weight, bias = convolution.conv.weight, convolution.conv.bias
    expected = sum(weight[:, :, i] @ x[0, 1 + i] for i in range(3)) + bias + y[0, 2]
    torch.testing.assert_close(found[0, 2], expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_counts_as_zeros(side):
    convolution, x, y = make(), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    expected = convolution(x, y, None)
    junk, real = torch.full((1, 2, 4), 9.0), torch.ones(1, 3, dtype=torch.bool)
    parts = [(x, y, real), (junk, junk, torch.zeros(1, 2, dtype=torch.bool))]
    parts = parts if side == "right" else parts[::-1]
    whole = [torch.cat([part[i] for part in parts], 1) for i in range(3)]
    found = convolution(*whole)
    torch.testing.assert_close(found[whole[2]][None], expected)


def test_an_even_kernel_and_packed_documents_are_refused():
    with pytest.raises(ValueError, match="conv_kernel=2: expected an odd number"):
        make(2)
    model = build_model(preset("tiny-deberta-v2-xlarge"))
    with pytest.raises(ValueError, match="segments were given to a model with conv_kernel"):
        model(torch.zeros(1, 4, dtype=torch.long), segments=torch.tensor([[0, 0, 1, 1]]))
