"""DPO, IPO and ORPO, compared with their formulas."""

import math

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.training.preference_loss import answer_log_probs, preference_loss

LOG_PROBS, LENGTHS, REFERENCE = torch.tensor([-2.0, -6.0]), torch.tensor([2, 3]), torch.tensor([-3.0, -5.0])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def odds(mean):
    return mean - math.log(1 - math.exp(mean))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dpo", -math.log(sigmoid(0.5 * 2))),
        ("ipo", (2 - 1 / (2 * 0.5)) ** 2),
        ("orpo", 1 - 0.5 * math.log(sigmoid(odds(-1) - odds(-2)))),
    ],
)
def test_the_losses_are_those_of_the_papers(kind, expected):
    loss = preference_loss(LOG_PROBS, LENGTHS, REFERENCE, kind=kind, beta=0.5)
    assert loss.item() == pytest.approx(expected, abs=1e-4)


def test_the_log_probability_of_an_answer_is_the_sum_over_its_tokens():
    model = build_model(preset("tiny-llama")).eval()
    tokens, targets = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[-100, 3, 4, -100]])
    found, lengths = answer_log_probs(model, tokens, targets, ignore=-100)
    expected = model(tokens).log_softmax(-1)
    assert found.item() == pytest.approx((expected[0, 1, 3] + expected[0, 2, 4]).item(), abs=1e-5)
    assert lengths.tolist() == [2]
