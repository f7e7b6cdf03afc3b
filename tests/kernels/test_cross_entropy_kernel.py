"""The loss and gradient that replace logits are those of torch. With a GPU, the kernel equals plain torch."""

import pytest
import torch
import torch.nn.functional as F

from glassformer.kernels import cross_entropy_kernel
from glassformer.kernels.cross_entropy_kernel import multiply_in_place, replace_by_gradient

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("n_classes", "width"), [(7, 7), (50, 64), (9001, 9024)])
def test_loss_and_gradient_are_those_of_torch(device, smoothing, n_classes, width):
    torch.manual_seed(0)
    logits = 3 * torch.randn(6, width, device=device)
    targets = torch.randint(1, n_classes, (6,), device=device)
    targets[2] = 0
    exact = logits[:, :n_classes].clone().requires_grad_()
    right = F.cross_entropy(exact, targets, ignore_index=0, label_smoothing=smoothing, reduction="none")
    (gradient,) = torch.autograd.grad(right.sum(), exact)
    losses = replace_by_gradient(logits, targets, n_classes=n_classes, smoothing=smoothing, ignore=0)
    torch.testing.assert_close(losses, right.detach(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(logits[:, :n_classes], gradient, atol=1e-6, rtol=1e-4)
    assert not logits[:, n_classes:].any()
    assert not logits[2].any()


def test_a_logit_that_is_not_finite_makes_the_loss_nan():
    logits = torch.zeros(2, 5)
    logits[1, 3] = torch.nan
    losses = replace_by_gradient(logits, torch.tensor([1, 1]), n_classes=5)
    assert losses.isnan().tolist() == [False, True]


def test_logits_on_a_cpu_are_computed_by_torch():
    assert not cross_entropy_kernel.can_use_kernel(torch.zeros(2, 5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_multiplied_in_place(device, dtype):
    x = torch.randn(5, 1001, device=device).to(dtype)
    right = (x.float() * 0.3).to(dtype)
    assert multiply_in_place(x, torch.tensor(0.3, device=device)) is x
    torch.testing.assert_close(x, right)
