"""Dropout with cheap random numbers on a CPU.

On a CPU, torch draws a full random number per element, which took 7 % of a training step. This module draws 16 bits per
element instead. On other devices, and inside `torch.compile`, it calls torch's dropout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from glassformer.nn.tensor_checks import check_probability

LEVELS = 2**16
"""Number of values of a 16-bit random number. On a CPU the drop probability is rounded to a multiple of 1 / LEVELS."""


def drop(x: Tensor, p: float) -> Tensor:
    """Set each element to 0 with probability p and scale the rest by 1 / (1 - p) (Srivastava et al. 2014)."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    n_dropped = round(p * LEVELS)  # of the LEVELS values of a 16-bit number
    if n_dropped == LEVELS:
        return x * 0.0
    # The explicit lower bound matters: random_() without it leaves the highest bit of each word 0.
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    is_kept = bits >= n_dropped - LEVELS // 2
    return x * is_kept.to(x.dtype).mul_(LEVELS / (LEVELS - n_dropped))


class Dropout(nn.Module):
    """Dropout module: it applies `drop` in training and returns its input unchanged in evaluation."""

    def __init__(self, p: float = 0.0):
        super().__init__()
        check_probability("dropout", p)
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x, of any shape, with elements dropped in training."""
        return drop(x, self.p) if self.training and self.p else x

    @override
    def extra_repr(self) -> str:
        return f"p={self.p}"
