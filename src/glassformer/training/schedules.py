"""Learning-rate schedules, the growth of the batch, and the plan of a run, which both depend on.

To add a schedule, write its function and list it in `SCHEDULES`, from which the training config, the command line and
the recipes take the names.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from glassformer.base.checks import shown

WARMUP_SHARE = 4
"""`fit_warmup` limits a warm-up to 1/WARMUP_SHARE of all updates."""
MAX_PARTS = 64
"""Largest number of parts into which a `BatchRamp` cuts a full batch."""


def lr_factor(schedule: "Schedule", update: float, *, warmup: int, updates: int) -> float:
    """Return the learning rate of an update as a fraction of the peak learning rate.

    It rises linearly over `warmup` updates, then follows the schedule's function. `update` counts from 1, and
    `updates` is the number of all updates. The schedules cosine and linear reach zero at the last update.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={shown(schedule)}: expected one of {', '.join(SCHEDULES)}")
    if update <= warmup:
        return update / warmup
    return SCHEDULES[schedule](update, warmup, updates)


def _inverse_sqrt(update: float, warmup: int, updates: int) -> float:
    """Return √(warmup / update), the decay of Vaswani et al. 2017, also called Noam."""
    return math.sqrt(max(warmup, 1) / update)


def _cosine(update: float, warmup: int, updates: int) -> float:
    """Return the factor of a half cosine from 1 to 0 (Loshchilov and Hutter 2017, without restarts)."""
    return 0.5 * (1 + math.cos(math.pi * _progress(update, warmup, updates)))


def _linear(update: float, warmup: int, updates: int) -> float:
    return 1 - _progress(update, warmup, updates)


def _constant(update: float, warmup: int, updates: int) -> float:
    return 1.0


def _progress(update: float, warmup: int, updates: int) -> float:
    """Return the fraction of the updates after the warm-up that are done, from 0 to 1."""
    return min((update - warmup) / max(updates - warmup, 1), 1.0)


SCHEDULES: dict[str, Callable[[float, int, int], float]] = {
    "inverse_sqrt": _inverse_sqrt,
    "cosine": _cosine,
    "linear": _linear,
    "constant": _constant,
}
"""The schedules by name. Each function takes the update, the number of warm-up updates and the number of all updates,
and returns the learning rate after the warm-up as a fraction of the peak."""
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[tuple(SCHEDULES)]  # the config checks its value, and `--help` lists the names, by this type


class BatchRamp(NamedTuple):
    """A batch that grows: from 1/n_parts of its full size to the full size, over the first `updates` updates.

    The size grows in the steps 1/n, ..., 1/3, 1/2, 1: each is taken once a line from 1/n_parts to 1 has reached it. A
    full batch can therefore be cut into equal parts for consecutive updates (`data/batching/update_batches.py`).
    """

    n_parts: int = 1
    """Number of updates that share a full batch at the start; 1 is no ramp."""
    updates: int = 0
    """Number of updates after which the batch has its full size."""

    def parts_at(self, position: int) -> int:
        """Return the number of updates that share a full batch if the first of them is number `position`, from 0."""
        return next(parts for parts in range(1, self.n_parts + 1) if position >= self._start_of(parts))

    def full_updates(self, position: float) -> float:
        """Return how many updates with full batches cost as much as the first `position` updates, approximately."""
        total, end = 0.0, position
        for parts in range(1, self.n_parts + 1):
            begin = min(end, max(0.0, self._start_of(parts)))
            total, end = total + (end - begin) / parts, begin
        return total

    def _start_of(self, parts: int) -> float:
        """Return the update from which a full batch is shared by `parts` updates; 0 for `n_parts`."""
        first = 1 / self.n_parts
        return self.updates * ((1 / parts - first) / (1 - first)) if self.n_parts > 1 else 0.0


def read_ramp(text: str) -> tuple[int, float]:
    """Return `n_parts` of a `BatchRamp` and the fraction of all updates it takes, from text such as "0.25:0.3".

    The empty text gives (1, 0.0), no ramp. Raises ValueError if the text is neither.
    """
    if not text:
        return 1, 0.0
    try:
        start, share = (float(number) for number in text.split(":"))
    except ValueError:
        start = share = math.nan
    if not (1 / MAX_PARTS <= start <= 0.5 and 0 < share <= 1):
        raise ValueError(
            f"batch_ramp={shown(text)}: expected START:SHARE such as 0.25:0.3, with a START from "
            f"{1 / MAX_PARTS} to 0.5, the first batch as a fraction of a full one, and a SHARE above 0 and at most 1 "
            "of all updates"
        )
    return round(1 / start), share


def make_ramp(text: str, updates: int) -> BatchRamp:
    """Return the ramp that `text`, such as "0.25:0.3", describes for a run of `updates` updates."""
    n_parts, share = read_ramp(text)
    return BatchRamp(n_parts, math.ceil(share * updates))


class Correction(NamedTuple):
    """A change of the planned number of updates during a run, made to end within the time budget."""

    update: int
    """Number of updates made before the change."""
    updates: int
    """The new number of updates of the whole run."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The number of updates of a run and its learning-rate schedule, as recorded in the run folder.

    A run that is continued with other settings starts a new plan at update `start`. If the new learning rate is higher
    than the old one, `start_lr`, it rises linearly over the first tenth of the remaining updates, but over at most
    `warmup` updates.

    A change of the number of updates during the run, a `Correction`, stretches or compresses the rest of the schedule:
    the learning rate does not jump, and cosine and linear still reach zero at the last update. The learning rate of an
    update depends only on corrections before it.
    """

    updates: int
    """Number of updates as planned at `start`. `end` includes the corrections."""
    warmup: int
    """Number of warm-up updates, as planned at `start`."""
    start: int = 0
    """Number of updates made before this plan started."""
    start_lr: float = 0.0
    """Learning rate before this plan started."""
    start_seconds: float = 0.0
    """Time spent on training, validations and saves before this plan started."""
    corrections: tuple[Correction, ...] = ()
    """Changes of the number of updates, oldest first."""
    ramp_updates: int = 0
    """Number of updates over which the batch grows (`BatchRamp`). Corrections and later plans do not change it, because
    the examples of every update follow from it."""

    def __post_init__(self) -> None:
        corrections = tuple(_read_correction(one) for one in self.corrections)
        last, end = self.start, self.updates
        for one in corrections:
            if not last <= one.update < end or one.update > one.updates:
                raise TypeError(
                    f"correction {list(one)}: expected an update from {last} to {end - 1}, and as many updates or more"
                )
            last, end = one
        object.__setattr__(self, "corrections", corrections)

    @property
    def end(self) -> int:
        """Number of updates of the whole run, corrections included."""
        return self.corrections[-1].updates if self.corrections else self.updates

    def corrected(self, update: int, updates: int) -> "Plan":
        """Return a copy of this plan with one more correction: after `update` updates, the total becomes `updates`."""
        return replace(self, corrections=(*self.corrections, Correction(update, updates)))

    def ended(self, update: int) -> "Plan":
        """Return a copy of this plan that ends after `update` updates. The learning rates up to there stay."""
        earlier = tuple(one for one in self.corrections if one.update < update)
        return replace(self, corrections=(*earlier, Correction(update, update)))

    def lr(self, schedule: Schedule, peak: float, update: int) -> float:
        """Return the learning rate of an update, counted from 1, with `peak` as the learning rate after warm-up."""
        place = self._place(update)
        planned = peak * lr_factor(schedule, place, warmup=self.warmup, updates=self.updates)
        ramp = min(self.warmup, (self.updates - self.start) // 10)
        passed = place - self.start
        if not self.start or passed >= ramp or planned <= self.start_lr:
            return planned
        return self.start_lr + (planned - self.start_lr) * passed / ramp

    def ramp(self, batch_ramp: str) -> BatchRamp:
        """Return how the batch grows in a run with the option `batch_ramp`, such as "0.25:0.3"."""
        return BatchRamp(read_ramp(batch_ramp)[0], self.ramp_updates)

    def _place(self, update: int) -> float:
        """Return which update of the uncorrected schedule `update` corresponds to; it may be a fraction."""
        since, place, end = self.start, float(self.start), self.updates
        for one in self.corrections:
            if one.update >= update:
                break
            place += (self.updates - place) * (one.update - since) / (end - since)
            since, end = one.update, one.updates
        if since == self.start and end == self.updates:
            return update  # exact, so that a run without corrections is reproducible bit for bit
        return self.updates if update >= end else place + (self.updates - place) * (update - since) / (end - since)


def simple_plan(updates: int, warmup: float, batch_ramp: str = "") -> Plan:
    """Return the plan of a new run of `updates` updates, with the options `warmup` and `batch_ramp` as they are."""
    ramp = make_ramp(batch_ramp, updates)
    return Plan(updates=updates, warmup=warmup_updates(warmup, updates), ramp_updates=ramp.updates)


def warmup_updates(warmup: float, updates: int) -> int:
    """Return the number of warm-up updates; a `warmup` below 1 is a fraction of all `updates`."""
    return round(warmup * updates) if warmup < 1 else int(warmup)


def fit_warmup(warmup: float, updates: int) -> int:
    """Return the number of warm-up updates like `warmup_updates`, but at most a quarter of `updates`.

    The limit does not apply to a `warmup` below 1, a fraction of all updates.
    """
    wanted = warmup_updates(warmup, updates)
    return wanted if warmup < 1 else min(wanted, updates // WARMUP_SHARE)


def _read_correction(values: Any) -> Correction:
    """Return the `Correction` of two whole numbers, given as a tuple or, from JSON, as a list."""
    if not isinstance(values, list | tuple) or [type(value) for value in values] != [int, int]:
        raise TypeError(f"correction {values!r}: expected two whole numbers")
    return Correction(*values)
