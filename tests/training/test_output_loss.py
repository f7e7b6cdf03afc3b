"""The loss of the output layer is the same whether it keeps logits or replaces them by their gradient."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.training import output_loss as module
from glassformer.training.losses import summed_loss
from glassformer.training.output_loss import output_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
def test_the_fused_loss_has_the_value_and_gradients_of_the_plain_one(monkeypatch, smoothing, bias):
    torch.manual_seed(0)
    model = build_model(preset("tiny-transformer-base", vocab_size=9, dropout=0.0, output_bias=bias))
    hidden = torch.randn(2, 3, model.config.d_model, requires_grad=True)
    answers = torch.tensor([[1, 2, 0], [8, 0, 3]])
    learned = [hidden, *model.head.parameters()]
    found = []
    for is_fused in (False, True):
        monkeypatch.setattr(module, "_is_fused", lambda hidden, head, is_fused=is_fused: is_fused)
        loss = output_loss(model, hidden, answers, ignored=0, smoothing=smoothing)
        found.append([loss, *torch.autograd.grad(loss * 0.5, learned)])
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain)


def test_r_drop_compares_the_logits_of_two_passes():
    model = build_model(preset("tiny-transformer-base", vocab_size=9, dropout=0.0))
    hidden, answers = torch.randn(4, 3, model.config.d_model), torch.ones(4, 3, dtype=torch.long)
    loss = output_loss(model, hidden, answers, ignored=0, smoothing=0.1, r_drop=2.0)
    logits = model.apply_head(hidden).flatten(0, 1)
    torch.testing.assert_close(loss, summed_loss(logits, answers.flatten(), ignored=0, smoothing=0.1, r_drop=2.0))
