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
