"""Linear layers for training on ARM CPUs against `nn.Linear`."""

import pytest
import torch
from torch import Tensor, nn

from glassformer.training.cpu_linear import MIN_ROWS, fast_linears, is_worthwhile, linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3), (2, 0, 3)])
def test_output_and_gradients_equal_those_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 7, bias=bias).double()
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    expected, ours = layer(x), linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    wanted, by = [x, *layer.parameters()], torch.randn_like(expected)
    found = torch.autograd.grad(ours, wanted, by)
    for one, other in zip(found, torch.autograd.grad(expected, wanted, by), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_inputs_and_gradients_need_not_be_contiguous() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.randn(4, 6, 2).transpose(0, 2)  # (2, 6, 4)
    by = torch.randn(4, 6, 2).transpose(0, 2)
    ours = torch.autograd.grad(linear(x, layer.weight, layer.bias), list(layer.parameters()), by)
    for one, other in zip(ours, torch.autograd.grad(layer(x), list(layer.parameters()), by), strict=True):
        torch.testing.assert_close(one, other)


def test_frozen_parameters_get_no_gradient() -> None:
    layer, x = nn.Linear(3, 2).requires_grad_(False), torch.ones(4, 3, requires_grad=True)
    linear(x, layer.weight, layer.bias).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, 3))


class Own(nn.Linear):
    """A subclass, which computes as it says."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


def test_layers_are_replaced_inside_the_context_only_and_hooks_still_run() -> None:
    model, seen = nn.Sequential(nn.Linear(3, 3), Own(3, 3)), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(type(output.grad_fn).__name__))
    many, few = torch.ones(MIN_ROWS, 3), torch.ones(MIN_ROWS - 1, 3)
    expected = model(many)
    with fast_linears(model):
        torch.testing.assert_close(model(many), expected)
        model(few)  # too few rows to be worth it
    model(many)
    assert [name == "_LinearBackward" for name in seen] == [False, True, False, False]
    assert "forward" not in vars(model[0])


def test_under_autocast_torch_computes_the_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with fast_linears(model), torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.ones(MIN_ROWS, 3)).dtype == torch.bfloat16


def test_other_devices_keep_their_layers() -> None:
    assert not is_worthwhile(torch.device("cuda"))
