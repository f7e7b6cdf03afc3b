"""Losses on preferred and rejected answers.

DPO (Rafailov et al. 2023), IPO (Azar et al. 2023) and ORPO (Hong et al. 2024). Let p be the log-probability of the
preferred answer and q that of the rejected one, and p0 and q0 the same before the training. The log-ratio is
h = (p - p0) - (q - q0). With the mean log-probabilities P and Q of a token and odds(P) = P - log(1 - exp P):

    DPO    -log sigmoid(beta h)
    IPO    (h - 1 / (2 beta))^2
    ORPO   -P - beta log sigmoid(odds(P) - odds(Q))
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.training.losses import token_log_probs

PreferenceLoss = Literal["dpo", "ipo", "orpo"]


def answer_log_probs(model: Any, tokens: Tensor, targets: Tensor, *, ignore: int) -> tuple[Tensor, Tensor]:
    """Return the summed log-probability (N,) of the targets of each row, and their number (N,).

    `tokens` and `targets` are (N, T); a target that is `ignore` does not count.
    """
    return token_log_probs(model(tokens), targets, ignore=ignore).sum(1), (targets != ignore).sum(1)


def preference_loss(
    log_probs: Tensor, lengths: Tensor, reference: Tensor, *, kind: PreferenceLoss, beta: float
) -> Tensor:
    """Return the sum of the losses of B pairs. All arguments are (2B,): the preferred answers, then the rejected ones.

    `reference` holds the log-probabilities under the model before the training; ORPO does not use them.
    """
    if kind == "orpo":
        means = log_probs / lengths.clamp_min(1)
        odds = means - torch.log1p(-means.exp().clamp_max(1 - 1e-6))
        chosen, rejected = odds.chunk(2)
        return (-means.chunk(2)[0] - beta * F.logsigmoid(chosen - rejected)).sum()
    chosen, rejected = (log_probs - reference).chunk(2)
    ratio = chosen - rejected
    if kind == "ipo":
        return (ratio - 1 / (2 * beta)).square().sum()
    return -F.logsigmoid(beta * ratio).sum()
