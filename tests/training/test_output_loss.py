"""The loss that replaces logits by their gradient is that of torch, and so are its gradients."""

import pytest
import torch
from torch import nn

from glassformer.runtime.packed_model import PaddedLinear
from glassformer.training.losses import label_smoothed_cross_entropy
from glassformer.training.output_loss import can_replace_logits, replaced_logits_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_padded", [False, True])
def test_value_and_gradients_are_those_of_the_plain_loss(smoothing, bias, is_padded):
    torch.manual_seed(0)
    layer: nn.Module = nn.Linear(4, 9, bias=bias)
    if is_padded:
        layer = PaddedLinear(layer).requires_grad_()
    hidden, targets = torch.randn(6, 4, requires_grad=True), torch.tensor([1, 2, 0, 8, 0, 3])
    learned = [hidden, *layer.parameters()]
    plain = label_smoothed_cross_entropy(layer(hidden), targets, smoothing=smoothing, ignore=0, reduction="sum")
    found = replaced_logits_loss(hidden, layer, targets, smoothing=smoothing, ignored=0)
    torch.testing.assert_close(found, plain)
    for own, right in zip(*(torch.autograd.grad(loss * 0.5, learned) for loss in (found, plain)), strict=True):
        torch.testing.assert_close(own, right)


def test_a_cpu_has_no_kernel_for_it():
    assert not can_replace_logits(torch.zeros(2, 3), torch.zeros(4, 3))
