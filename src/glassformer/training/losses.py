"""The loss of every task that predicts tokens or classes: cross-entropy with label smoothing and ignored positions."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor


def label_smoothed_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Return the cross-entropy of logits (..., V) and target ids (...) as a scalar.

    Training and evaluation both call this function; evaluation leaves `smoothing` at 0.

    Args:
        smoothing: Probability mass that is spread evenly over all V classes; the target keeps the rest
            (Szegedy et al. 2016, section 7).
        ignore: Target id, such as padding, whose positions count neither in the sum nor in the mean.
        reduction: "sum" over the counted positions, or their "mean". Without any counted position both are 0.
    """
    ignored = -100 if ignore is None else ignore  # -100 is never a class
    flat_logits, flat_targets = logits.flatten(0, -2), targets.flatten()  # (N, V), (N,)
    total = F.cross_entropy(flat_logits, flat_targets, ignore_index=ignored, reduction="sum", label_smoothing=smoothing)
    return total if reduction == "sum" else total / (flat_targets != ignored).sum().clamp_min(1)


def token_log_probs(logits: Tensor, targets: Tensor, *, ignore: int) -> Tensor:
    """Return the log-probabilities of target ids (...) under logits (..., V); 0 where the target is `ignore`."""
    losses = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=ignore, reduction="none")
    return -losses.view(targets.shape)


def summed_loss(logits: Tensor, answers: Tensor, *, ignored: int, smoothing: float, r_drop: float) -> Tensor:
    """Return the summed training loss of logits (N, V) and target ids (N,), with R-Drop if `r_drop` is above 0.

    R-Drop (Liang et al. 2021) runs each batch twice with different dropout. The second half of the N predictions must
    then be for the same targets as the first half. The loss is the mean loss of both passes plus `r_drop` times the
    divergence of their predictions. Targets equal to `ignored` do not count.
    """
    loss = label_smoothed_cross_entropy(logits, answers, smoothing=smoothing, ignore=ignored, reduction="sum")
    if not r_drop:
        return loss
    is_counted = answers.chunk(2)[0] != ignored
    return loss / 2 + r_drop * (r_drop_divergence(*logits.chunk(2)) * is_counted).sum()


def r_drop_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Return a quarter of KL(p, q) + KL(q, p) for each of N pairs of predictions, given as logits (N, V), as (N,).

    R-Drop's equation 2 has a factor of one half. Another factor of one half arises because `summed_loss` averages the
    two passes, while the paper adds them. The sum of both KL directions is sum((p - q) * (log p - log q)).
    """
    log_p, log_q = first.float().log_softmax(-1), second.float().log_softmax(-1)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1) / 4
