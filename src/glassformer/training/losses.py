"""What a model is trained to make small."""

import torch.nn.functional as F
from torch import Tensor


def label_smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, ignore: int | None = None
) -> Tensor:
    """Mean loss over the real tokens: logits (..., V), targets (...) -> a number.

    The wanted distribution gives 1 - smoothing to the target and spreads the rest evenly over all tokens. Targets equal
    to `ignore` (padding) count neither in the sum nor in the number it is divided by; with nothing to count it is 0.
    """
    ignored = -100 if ignore is None else ignore
    losses = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), reduction="none", label_smoothing=smoothing, ignore_index=ignored
    )
    return losses.sum() / (targets != ignored).sum().clamp_min(1)


def summed_loss(logits: Tensor, answers: Tensor, *, ignored: int, smoothing: float, r_drop: float) -> Tensor:
    """The sum of smoothed losses: logits (N, V), answers (N). With R-Drop (Liang et al. 2021) the second half is the
    first once more, under other dropout, and their disagreement counts `r_drop` times.
    """
    loss = F.cross_entropy(logits, answers, ignore_index=ignored, reduction="sum", label_smoothing=smoothing)
    if not r_drop:
        return loss
    differs = disagreement(*logits.chunk(2)) * (answers.chunk(2)[0] != ignored)
    return loss / 2 + r_drop * differs.sum()


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """A quarter of the symmetric Kullback-Leibler divergence of two predictions for each token: (N, V) twice -> (N).

    R-Drop's equation 2 has a half; the other half is that the losses of the two passes are averaged here. As
    p·log(p/q) + q·log(q/p) = (p - q)·(log p - log q), one product serves both directions.
    """
    a, b = first.float().log_softmax(-1), second.float().log_softmax(-1)
    return ((a.exp() - b.exp()) * (a - b)).sum(-1) / 4
