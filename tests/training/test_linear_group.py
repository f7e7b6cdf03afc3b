"""Linear layers with the same input as one operation, against `nn.Linear`."""

import pytest
import torch
from torch import nn

from glassformer.training.linear_group import linear_group


def gradients(x, layers, results):
    wanted = [tensor for tensor in (x, *(p for layer in layers for p in layer.parameters())) if tensor.requires_grad]
    torch.manual_seed(1)
    by = [torch.randn_like(result) for result in results]
    return torch.autograd.grad(results, wanted, by)


@pytest.mark.parametrize("frozen", ["nothing", "x", "a weight", "a bias", "a layer"])
@pytest.mark.parametrize("shape", [(5, 6), (2, 4, 6)])
def test_results_and_gradients_equal_those_of_the_layers(shape, frozen):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 7), nn.Linear(6, 3, bias=False), nn.Linear(6, 5)]
    x = torch.randn(shape, requires_grad=frozen != "x")
    layers[0].weight.requires_grad_(frozen != "a weight")
    layers[2].bias.requires_grad_(frozen != "a bias")
    layers[1].requires_grad_(frozen != "a layer")
    expected, ours = [layer(x) for layer in layers], linear_group(x, layers)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(gradients(x, layers, ours), gradients(x, layers, expected), strict=True):
        torch.testing.assert_close(one, other)


def test_inputs_and_gradients_need_not_be_contiguous():
    torch.manual_seed(0)
    layers, x = [nn.Linear(4, 4), nn.Linear(4, 4)], torch.randn(4, 6, 2).transpose(0, 2)  # (2, 6, 4)
    by, parameters = [torch.randn(4, 6, 2).transpose(0, 2)] * 2, [*layers[0].parameters(), *layers[1].parameters()]
    ours = torch.autograd.grad(linear_group(x, layers), parameters, by)
    for one, other in zip(ours, torch.autograd.grad([layer(x) for layer in layers], parameters, by), strict=True):
        torch.testing.assert_close(one, other)


class Own(nn.Linear):
    """A subclass, which computes as it says."""


def test_other_layers_and_inputs_are_left_to_the_layers():
    x, layer = torch.ones(2, 3), nn.Linear(3, 3)
    hooked, replaced = nn.Linear(3, 3), nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, inputs, output: None)
    replaced.forward = layer.forward
    for others in ([], [hooked], [replaced], [Own(3, 3)], [nn.Identity()], [nn.Linear(3, 3).double()]):
        assert linear_group(x, [layer, *others]) is None
    assert linear_group(x.double(), [layer, layer]) is None
    assert linear_group(x[:0], [layer, layer]) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear_group(x, [layer, layer]) is None
    assert linear_group(x, [layer, layer]) is not None
