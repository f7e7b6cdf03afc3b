"""The time budget of `--minutes`: how many updates fit into it, and how that number is corrected during the run.

`--minutes` covers the whole command: reading and tokenizing, updates, validations, saves and the final scores. Before
the first update only the duration of an update is known, from the pilot, which times a few updates. During the run the
`Planner` also measures validations, saves and a sample of the final scoring, and corrects the number of updates at
fixed fractions of the planned updates. Each correction is recorded before the next update, so that a resumed run
repeats it. Recording a batch shape as a CUDA graph, once, does not count as time of its update: early in a run almost
every shape is new, and later none is.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from glassformer.runtime.devices import choose_device
from glassformer.training.background_save import saves_in_background
from glassformer.training.schedules import BatchRamp, Plan, make_ramp, read_ramp
from glassformer.training.state import TrainState
from glassformer.training.train_config import TrainConfig
from glassformer.training.trainer import Trainer

POINTS = (0.03, 0.1, 0.25, 0.45, 0.65, 0.8, 0.9, 0.96)
"""Fractions of the planned updates after which the number of updates is corrected."""
MAX_WAIT = 0.25
"""Fraction of the whole time. After this time without a correction the number of updates is corrected in any case,
because the machine may have become slower."""
REHEARSALS = frozenset({0.25, 0.65, 0.9})
"""Those of `POINTS` at which a sample of the final scoring is timed."""
VALIDATION_POINT = 0.65
"""Fraction of the planned updates after which a run without a validation makes one, to measure its duration."""
MAX_VALIDATION_SHARE = 0.25
"""The validation at `VALIDATION_POINT` is left out if it would take more than this fraction of the whole time."""
UNKNOWN_SHARE = 0.1
"""Fraction of the whole time that is reserved for everything after the updates until the final scoring is timed."""
NEGLIGIBLE_SHARE = 0.01
"""The final scoring is not timed again once it takes less than this fraction of the whole time."""


@dataclass(frozen=True, kw_only=True)
class TimeBudget:
    """The time that a training command may take, and how much of it is left."""

    seconds: float
    """The whole time, from `--minutes`."""
    began: float
    """Value of `clock` at the start of the command."""
    earlier: float = 0.0
    """Seconds that earlier processes spent on training, validations, saves and recordings of this plan."""
    clock: Callable[[], float] = lambda: time.perf_counter()
    """Returns the current time in seconds."""

    def left(self) -> float:
        """Return the seconds that are left; negative if the time is over."""
        return self.seconds - self.earlier - (self.clock() - self.began)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that one update with a full batch, one validation, one save and the ending of a run take."""

    update: float
    validation: float = 0.0
    save: float = 0.0
    ending: float = 0.0
    """Everything after the last validation: final scores and writing the model folder."""


def updates_that_fit(
    seconds: float, costs: Costs, config: TrainConfig, position: int = 0, ramp_updates: int | None = None
) -> int:
    """Return how many more updates fit into `seconds`, together with their validations, saves and the ending.

    `position` is the number of updates tried before. `ramp_updates` is the number of updates over which the batch
    grows; None means that it follows from the result, as `config.batch_ramp` says. The result is at least 1, and
    limited by `config.max_updates`, which counts all updates of the run.
    """
    n_parts, _ = read_ramp(config.batch_ramp)
    in_background = saves_in_background(config, choose_device(config.device))

    def full_updates(count: int) -> float:
        if ramp_updates is None:
            return make_ramp(config.batch_ramp, count).full_updates(count)
        ramp = BatchRamp(n_parts, ramp_updates)
        return ramp.full_updates(position + count) - ramp.full_updates(position)

    def times(every: int, end: int) -> int:
        return end // every - position // every

    def cost(count: int) -> float:
        end = position + count
        validations = times(config.eval_every, end)
        validations += end % config.eval_every != 0  # after the last update
        both = math.lcm(config.eval_every, config.save_every)
        saves = validations + times(config.save_every, end) - times(both, end)
        if in_background:  # one more in the middle of each interval
            middle = config.save_every - config.save_every // 2
            saves += (end + middle) // config.save_every - (position + middle) // config.save_every
        validations += config.average_last > 1  # of the averaged parameters
        return full_updates(count) * costs.update + validations * costs.validation + saves * costs.save + costs.ending

    low, high = 1, max(1, math.ceil(n_parts * seconds / max(costs.update, 1e-9)))
    if config.max_updates:
        high = min(high, max(1, config.max_updates - position))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost(middle) <= seconds else (low, middle - 1)
    return low


def guess_costs(budget: TimeBudget, update: float) -> Costs:
    """Return the costs to assume while only `update`, the seconds of an update, is known."""
    return Costs(update=update, ending=UNKNOWN_SHARE * budget.seconds)


def _point_at(plan: Plan, update: int) -> float:
    """Return the largest fraction in `POINTS` of the planned updates that `update` has reached; 0 before the first."""
    length = plan.end - plan.start
    return max((point for point in POINTS if update >= plan.start + math.ceil(point * length)), default=0.0)


class Planner:
    """Corrects the number of updates of a running trainer, so that the command ends within its time budget."""

    def __init__(
        self,
        trainer: Trainer,  # type: ignore[type-arg]
        plan: Plan,
        budget: TimeBudget,
        *,
        update_seconds: float,
        record: Callable[[Plan], None],
        rehearse: Callable[[], float],
    ):
        """Create the planner of a run; pass its `correct` and `wants_validation` to the trainer.

        Args:
            plan: The number of updates and the schedule to start from.
            update_seconds: Duration of an update with a full batch, as measured by the pilot.
            record: Called with each corrected plan, to write it to the run folder.
            rehearse: Returns the estimated seconds of the final scoring, from a sample of it.
        """
        self.plan = plan
        self._trainer = trainer
        self._budget = budget
        self._record = record
        self._rehearse = rehearse
        self._update_seconds = update_seconds
        self._ramp = plan.ramp(trainer.config.batch_ramp)
        self._scoring: float | None = None
        self._rehearsing = 0.0
        self._first: tuple[float, float] | None = None
        """Number of updates, in full ones, and value of `_busy` at the start of this process."""
        self._mark: tuple[float, float] | None = None
        """Number of updates, in full ones, and value of `_busy` at the last correction."""
        self._corrected_at = budget.clock()

    def correct(self, state: TrainState) -> Plan | None:
        """If a correction is due before the next update, correct the plan, record and return it; else return None."""
        if self._mark is None:
            self._first = self._mark = self._ramp.full_updates(state.position), self._busy(state)
            self._corrected_at = self._budget.clock()
        if not self.is_correction_due(state):
            return None
        self._measure(state, rehearses=self._due_point(state) in REHEARSALS)
        costs = self._costs()
        fitting = updates_that_fit(self._budget.left(), costs, self._trainer.config, state.position, self._ramp.updates)
        self.plan = self.plan.corrected(state.update, state.update + fitting)
        self._record(self.plan)
        self._corrected_at = self._budget.clock()
        return self.plan

    def is_correction_due(self, state: TrainState) -> bool:
        """Whether `correct` would correct the plan at this state."""
        has_waited = self._budget.clock() - self._corrected_at > MAX_WAIT * self._budget.seconds
        is_over = state.update >= self.plan.end
        is_point = self._due_point(state) is not None
        return not is_over and state.update > self._last_correction() and (is_point or has_waited)

    def wants_validation(self, state: TrainState) -> bool:
        """Whether to validate now in addition to the regular interval, to measure the cost of a validation."""
        is_point = self._due_point(state) == VALIDATION_POINT
        is_cheap = self._costs().validation <= MAX_VALIDATION_SHARE * self._budget.seconds
        return is_point and is_cheap and not state.evaluations

    def _due_point(self, state: TrainState) -> float | None:
        """Return the fraction in `POINTS` that the run has newly reached since the last correction, or None."""
        point, last = _point_at(self.plan, state.update), 0.0
        if self.plan.corrections:
            before = replace(self.plan, corrections=self.plan.corrections[:-1])
            last = _point_at(before, self._last_correction())
        return point if point > last else None

    def _last_correction(self) -> int:
        """Return how many updates preceded the last correction or the plan; a resumed run may have made fewer."""
        return self.plan.corrections[-1].update if self.plan.corrections else self.plan.start

    def _busy(self, state: TrainState) -> float:
        """Return the clock without the time of validations, saves, recordings and rehearsals: the time of updates."""
        return self._budget.clock() - state.other_seconds - self._rehearsing

    def _measure(self, state: TrainState, *, rehearses: bool) -> None:
        """Measure how long an update with a full batch takes, as a mean since the last correction.

        If updates have become faster, only half of the gain is used, because they may become slower again. If
        `rehearses`, also estimate how long the final scoring takes, unless it is known to take negligible time.
        """
        assert self._first is not None
        assert self._mark is not None
        (before, busy), (first, first_busy), now = self._mark, self._first, self._busy(state)
        done = self._ramp.full_updates(state.position)
        if done > before:
            recent, overall = (now - busy) / (done - before), (now - first_busy) / (done - first)
            self._update_seconds = max(recent, (recent + overall) / 2)
        self._mark = done, now
        is_small = self._scoring is not None and self._scoring < NEGLIGIBLE_SHARE * self._budget.seconds
        if rehearses and not is_small:
            began = self._budget.clock()
            self._scoring = self._rehearse()
            self._rehearsing += self._budget.clock() - began

    def _costs(self) -> Costs:
        trainer, scoring = self._trainer, self._scoring
        if scoring is None:
            guess = guess_costs(self._budget, self._update_seconds)
            return replace(guess, validation=trainer.validation_seconds or 0.0, save=trainer.save_seconds)
        return Costs(
            update=self._update_seconds,
            # Before the first validation, assume the duration of the final scoring, which has about as many examples.
            validation=scoring if trainer.validation_seconds is None else trainer.validation_seconds,
            save=trainer.save_seconds,
            ending=scoring + trainer.save_seconds,
        )
