"""The learning rate of each update."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Schedule = Literal["inverse_sqrt", "cosine", "linear", "constant"]


def lr_factor(schedule: Schedule, update: int, *, warmup: int, updates: int) -> float:
    """The learning rate of an update, as a fraction of the peak.

    It rises over `warmup` updates, then falls: with 1/√update (the paper's schedule, called Noam), with a half cosine,
    or linearly. `update` counts from 1. Cosine and linear reach zero after the last of `updates`.
    """
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule={schedule!r}: expected one of {', '.join(get_args(Schedule))}")
    if update <= warmup:
        return update / warmup
    progress = min((update - warmup) / max(updates - warmup, 1), 1.0)
    if schedule == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / update)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    return 1 - progress if schedule == "linear" else 1.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many updates a run makes, and how its learning rate moves. The run folder records it.

    A run that is continued with another plan starts the new one at update `start`. If the new learning rate is higher
    than the old one, `start_lr`, it is approached linearly over the first tenth of the remaining updates, but over no
    more than `warmup` updates.
    """

    updates: int
    warmup: int
    start: int = 0
    start_lr: float = 0.0

    def lr(self, schedule: Schedule, peak: float, update: int) -> float:
        """The learning rate of an update, which counts from 1."""
        planned = peak * lr_factor(schedule, update, warmup=self.warmup, updates=self.updates)
        ramp = min(self.warmup, (self.updates - self.start) // 10)
        passed = update - self.start
        if not self.start or passed >= ramp or planned <= self.start_lr:
            return planned
        return self.start_lr + (planned - self.start_lr) * passed / ramp
