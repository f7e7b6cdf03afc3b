"""The learning rate of each update."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

Schedule = Literal["inverse_sqrt", "cosine", "linear", "constant"]
WARMUP_SHARE = 4
"""A warm-up that is fitted to a plan takes at most one update in so many."""


def lr_factor(schedule: Schedule, update: float, *, warmup: int, updates: int) -> float:
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


class Correction(NamedTuple):
    """A change of the number of updates while a run is under way."""

    update: int
    """The last update made with the number before."""
    updates: int
    """The new number of updates, counted from the first one of the run."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many updates a run makes, and how its learning rate moves. The run folder records it.

    A run that is continued with another plan starts the new one at update `start`. If the new learning rate is higher
    than the old one, `start_lr`, it is approached linearly over the first tenth of the remaining updates, but over no
    more than `warmup` updates.

    A correction stretches or compresses the rest of the schedule, so that the learning rate has no jump, and cosine and
    linear reach zero with the last update. During the warm-up the peak moves along; after it, the learning rate only
    falls faster or slower. The learning rate of an update depends on the corrections before it alone.
    """

    updates: int
    """As planned at `start`. `end` has the corrections too."""
    warmup: int
    """Updates of the warm-up, as planned at `start`."""
    start: int = 0
    start_lr: float = 0.0
    start_seconds: float = 0.0
    """What the run had spent on training, validations and saves when this plan started."""
    corrections: tuple[Correction, ...] = ()

    def __post_init__(self) -> None:
        corrections = tuple(_read_correction(one) for one in self.corrections)
        last, end = self.start, self.updates
        for one in corrections:
            if not last <= one.update < min(end, one.updates):
                raise TypeError(
                    f"correction {list(one)}: expected an update from {last} to {end - 1}, and more updates"
                )
            last, end = one
        object.__setattr__(self, "corrections", corrections)

    @property
    def end(self) -> int:
        """The number of updates of the whole run, corrections included."""
        return self.corrections[-1].updates if self.corrections else self.updates

    def corrected(self, update: int, updates: int) -> "Plan":
        """This plan with another number of updates, decided after `update` of them."""
        return replace(self, corrections=(*self.corrections, Correction(update, updates)))

    def lr(self, schedule: Schedule, peak: float, update: int) -> float:
        """The learning rate of an update, which counts from 1."""
        place = self._place(update)
        planned = peak * lr_factor(schedule, place, warmup=self.warmup, updates=self.updates)
        ramp = min(self.warmup, (self.updates - self.start) // 10)
        passed = place - self.start
        if not self.start or passed >= ramp or planned <= self.start_lr:
            return planned
        return self.start_lr + (planned - self.start_lr) * passed / ramp

    def _place(self, update: int) -> float:
        """Where an update is in the schedule as first planned, from `start` to `updates`."""
        since, place, end = self.start, float(self.start), self.updates
        for one in self.corrections:
            if one.update >= update:
                break
            place += (self.updates - place) * (one.update - since) / (end - since)
            since, end = one.update, one.updates
        if since == self.start and end == self.updates:
            return update  # not one rounding error: a run without corrections is reproducible bit for bit
        return self.updates if update >= end else place + (self.updates - place) * (update - since) / (end - since)


def warmup_updates(warmup: float, updates: int) -> int:
    """The updates of a warm-up in a run of so many updates: a number below 1 is a share of them."""
    return round(warmup * updates) if warmup < 1 else int(warmup)


def fit_warmup(warmup: float, updates: int) -> int:
    """The same, but a number of updates is cut to a quarter of the run. A share fits already."""
    wanted = warmup_updates(warmup, updates)
    return wanted if warmup < 1 else min(wanted, updates // WARMUP_SHARE)


def _read_correction(values: Any) -> Correction:
    """A correction from its two numbers, which JSON has as a list."""
    if not isinstance(values, list | tuple) or [type(value) for value in values] != [int, int]:
        raise TypeError(f"correction {values!r}: expected two whole numbers")
    return Correction(*values)
