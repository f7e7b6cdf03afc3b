"""The learning rate of each update, as a share of its peak."""

import math
from typing import Literal

Schedule = Literal["inverse_sqrt", "cosine", "linear", "constant"]


def share_of_peak(schedule: Schedule, update: int, *, warmup: int, updates: int) -> float:
    """Rise over `warmup` updates, then fall: with 1/√update (the paper's, called Noam), a half cosine, or a line.

    `update` counts from 1. Cosine and linear reach zero after the last of `updates`.
    """
    if update <= warmup:
        return update / warmup
    rest = min((update - warmup) / max(updates - warmup, 1), 1.0)
    if schedule == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / update)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * rest))
    return 1 - rest if schedule == "linear" else 1.0
