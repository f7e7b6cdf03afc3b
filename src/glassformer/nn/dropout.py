"""Dropout whose random numbers cost little on a CPU.

torch draws a whole random number for each element there, which took 7 % of a training step; sixteen bits are enough to
decide whether one is dropped. On other devices torch's kernel is already the best.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.nn.tensor_checks import check_probability

LEVELS = 2**16
"""On a CPU the chance is rounded to one of this many."""


def drop(x: Tensor, chance: float) -> Tensor:
    """Each element is zero with this chance, and otherwise grows so that the mean stays (Srivastava et al. 2014)."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, chance)
    n_dropped = round(chance * LEVELS)  # of all that sixteen bits can say
    if n_dropped == LEVELS:
        return x * 0.0
    # The lowest number on purpose: without it random_() would leave one bit of each word at zero.
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    noise = (bits >= n_dropped - LEVELS // 2).to(x.dtype).mul_(LEVELS / (LEVELS - n_dropped))
    return x * noise


class Dropout(nn.Module):
    """`drop` in training, nothing in evaluation."""

    def __init__(self, chance: float = 0.0):
        super().__init__()
        check_probability("dropout", chance)
        self.chance = chance

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return drop(x, self.chance) if self.training and self.chance else x

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"chance={self.chance}"
