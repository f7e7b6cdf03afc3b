"""An update on a device is skipped or clipped as one on a CPU."""

import math

import pytest
import torch

from glassformer.training.started_update import StartedUpdate, can_apply_on_device, divide_gradients


def step(value, *, clip, loss=1.0, apply=True):
    """Step fused Adam with one gradient; return the parameter before and after, and what was read."""
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), value)
    optimizer = torch.optim.SGD([parameter], lr=0.5, fused=True)
    update = StartedUpdate([torch.tensor(loss), 2.0], parameter.grad.norm(), 7, 0.25, 0.0)
    if apply:
        update.apply_on_device(optimizer, clip)
    return parameter.detach(), update.read()


def test_the_gradient_is_clipped_and_the_learning_rate_is_that_of_the_update():
    after, (loss, norm) = step(2.0, clip=1.0)
    assert (loss, norm) == (3.0, pytest.approx(math.sqrt(12)))
    torch.testing.assert_close(after, 1 - 0.25 * torch.full((3,), 2 / math.sqrt(12)))
    torch.testing.assert_close(step(0.1, clip=1.0)[0], torch.full((3,), 1 - 0.25 * 0.1))  # short enough
    torch.testing.assert_close(step(2.0, clip=0.0)[0], torch.full((3,), 1 - 0.25 * 2))


@pytest.mark.parametrize(("value", "loss"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_an_update_that_is_not_finite_changes_nothing(value, loss):
    after, numbers = step(value, clip=1.0, loss=loss)
    assert torch.equal(after, torch.ones(3))
    assert not all(math.isfinite(number) for number in numbers)


def test_numbers_can_be_read_without_an_optimizer_step():
    assert step(2.0, clip=1.0, apply=False)[1] == (3.0, pytest.approx(math.sqrt(12)))


def test_only_fused_adam_on_a_gpu_is_stepped_on_the_device():
    adam = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], fused=True)
    assert can_apply_on_device(adam, torch.device("cuda"))
    assert not can_apply_on_device(adam, torch.device("cpu"))
    assert not can_apply_on_device(torch.optim.SGD(adam.param_groups[0]["params"]), torch.device("cuda"))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_gradients_divided_in_the_step_give_the_same_parameters(kind):
    found = []
    for in_step in (False, True):
        parameter = torch.nn.Parameter(torch.arange(5.0))
        parameter.grad = torch.linspace(-3.0, 4.0, 5)
        optimizer = kind([parameter], lr=0.1, **({"fused": True} if kind is torch.optim.Adam else {}))
        for divisor in (2.5, 1.0):
            parameter.grad = torch.linspace(-3.0, 4.0, 5)
            divide_gradients(optimizer, [parameter.grad], divisor, in_step=in_step)
            optimizer.step()
        found.append(parameter.detach())
    torch.testing.assert_close(*found)
