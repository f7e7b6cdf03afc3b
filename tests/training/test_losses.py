"""The loss: equal to torch's cross-entropy, in each reduction, and with R-Drop."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import glassformer
from glassformer.training.losses import label_smoothed_cross_entropy, r_drop_divergence, summed_loss

PAD = 0


@pytest.fixture
def predictions():
    torch.manual_seed(0)
    logits, targets = torch.randn(3, 5, 11), torch.randint(11, (3, 5))
    targets[:, 3:] = PAD
    return logits, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sum_equals_torch_exactly(predictions, smoothing):
    logits, targets = predictions
    ours = label_smoothed_cross_entropy(logits, targets, smoothing=smoothing, ignore=PAD, reduction="sum")
    flat = logits.flatten(0, 1), targets.flatten()
    assert torch.equal(ours, F.cross_entropy(*flat, ignore_index=PAD, reduction="sum", label_smoothing=smoothing))


def test_mean_divides_by_the_positions_that_are_not_ignored(predictions):
    logits, targets = predictions
    total = label_smoothed_cross_entropy(logits, targets, smoothing=0.1, ignore=PAD, reduction="sum")
    mean = label_smoothed_cross_entropy(logits, targets, smoothing=0.1, ignore=PAD)
    torch.testing.assert_close(mean, total / (targets != PAD).sum())


def test_ignored_positions_have_no_influence_and_no_gradient(predictions):
    logits, targets = predictions
    logits = logits.requires_grad_()
    label_smoothed_cross_entropy(logits, targets, smoothing=0.1, ignore=PAD).backward()
    assert (logits.grad[targets == PAD] == 0).all()
    assert (logits.grad[targets != PAD] != 0).any()


def test_only_ignored_positions_give_zero(predictions):
    logits, targets = predictions
    for reduction in ("mean", "sum"):
        assert label_smoothed_cross_entropy(logits, torch.zeros_like(targets), ignore=PAD, reduction=reduction) == 0


def test_r_drop_averages_both_passes_and_adds_their_disagreement(predictions):
    logits, targets = (x.flatten(0, 1) for x in predictions)
    other = logits + torch.randn_like(logits)
    loss = summed_loss(torch.cat([logits, other]), targets.repeat(2), ignored=PAD, smoothing=0.1, r_drop=2.0)
    plain = [summed_loss(x, targets, ignored=PAD, smoothing=0.1, r_drop=0.0) for x in (logits, other)]
    divergence = r_drop_divergence(logits, other)[targets != PAD].sum()
    torch.testing.assert_close(loss, sum(plain) / 2 + 2.0 * divergence)


def test_no_other_module_computes_a_cross_entropy():
    source = Path(glassformer.__file__).parent
    calls = [path.name for path in source.rglob("*.py") if "F.cross_entropy(" in path.read_text(encoding="utf-8")]
    assert calls == ["losses.py"]
