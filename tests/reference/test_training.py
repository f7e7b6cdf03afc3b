"""The loss and the optimizer of the reference, compared with torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from glassformer import reference
from glassformer.training import label_smoothed_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("ignore", [None, 0])
def test_loss_and_its_gradient_equal_torchs(smoothing, ignore):
    logits = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (3, 5))
    expected = F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        label_smoothing=smoothing,
        ignore_index=-100 if ignore is None else ignore,
    )
    expected.backward()
    loss, gradient = reference.label_smoothed_cross_entropy(
        logits.detach().numpy(), targets.numpy(), smoothing=smoothing, ignore=ignore
    )
    ours = label_smoothed_cross_entropy(logits, targets, smoothing=smoothing, ignore=ignore)
    assert loss == pytest.approx(expected.item(), abs=1e-12)
    assert ours.item() == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(gradient, logits.grad.numpy(), atol=1e-12)


def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = label_smoothed_cross_entropy(logits, torch.zeros(2, 3, dtype=torch.long), ignore=0, smoothing=0.1)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()
    value, gradient = reference.label_smoothed_cross_entropy(
        logits.detach().numpy(), np.zeros((2, 3), dtype=int), ignore=0, smoothing=0.1
    )
    assert value == 0
    assert not gradient.any()


def test_adam_equals_torchs():
    start = torch.randn(4, 3, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    theirs = torch.optim.Adam([parameter], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    values = {"w": start.numpy().copy()}
    ours = reference.Adam(values, lr=0.01)
    for _ in range(5):
        grad = torch.randn(4, 3, dtype=torch.float64)
        parameter.grad = grad.clone()
        theirs.step()
        ours.step({"w": grad.numpy()})
    np.testing.assert_allclose(values["w"], parameter.detach().numpy(), atol=1e-12)
