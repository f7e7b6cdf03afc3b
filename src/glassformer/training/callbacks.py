"""Callbacks of a training run: functions that the user passes to `train`, called after an update, validation or save.

They receive copies of the numbers, so they cannot change the training. If a callback raises, a checkpoint is saved and
the run ends; the same call of `train` resumes it. `StopTraining` instead ends the training and keeps the model.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

from glassformer.base.plurals import counted
from glassformer.training.schedules import Plan
from glassformer.training.started_update import Update
from glassformer.training.state import Evaluation
from glassformer.training.stop_signals import StoppedAtOnceError
from glassformer.training.trainer import Trainer


class StopTraining(Exception):  # noqa: N818  # not an error: the run ends with its model
    """Raised by an `on_step` or `on_evaluation` callback to end the training early and still get the model.

    The run then ends as if its updates were used up: it validates, chooses the best checkpoint, scores and saves the
    model. Called again, `train` finds it complete. In a run of several processes it is an exception like any other.

    >>> import glassformer as gf
    >>> def stop_early(event):
    ...     if event.update >= 200 and event.loss < 0.5:
    ...         raise gf.StopTraining
    >>> scores = gf.train("classification", data="reviews.tsv", out="my-early", minutes=5, on_step=stop_early)
    """


class StepEvent(NamedTuple):
    """The argument of an `on_step` callback: loss, learning rate, gradient norm and duration of one update."""

    update: int
    """Updates made so far, this one included."""
    loss: float
    """Mean loss of the update's target tokens."""
    learning_rate: float
    gradient_norm: float
    """Norm of the gradient before clipping."""
    tokens: int
    """Target tokens of this update."""
    seconds: float
    """Duration of this update."""
    skipped: int
    """Updates skipped so far because their gradient was not finite."""


class EvaluationEvent(NamedTuple):
    """The argument of an `on_evaluation` callback: the scores of one validation."""

    update: int
    """Updates made so far."""
    scores: Mapping[str, float]
    """Scores by name. The first one selects the best checkpoint, unless the setting `metric` names another."""
    is_average: bool = False
    """Whether they are those of the average of the last checkpoints, at the end of the run."""


class SaveEvent(NamedTuple):
    """The argument of an `on_save` callback: the folder of a checkpoint or of the finished model."""

    update: int
    """Updates made so far."""
    path: Path
    """Folder of the checkpoint, in `OUT.run/checkpoints`, or of the model."""
    is_model: bool
    """Whether this is the finished model, which is saved once, at the end."""
    scores: Mapping[str, float]
    """Final scores of the model; empty for a checkpoint."""


OnStep = Callable[[StepEvent], None]
OnEvaluation = Callable[[EvaluationEvent], None]
OnSave = Callable[[SaveEvent], None]


class Callbacks(TypedDict, total=False):
    """The callback arguments of `Task.train` as a dictionary, to pass with `task.train("m", **callbacks)`."""

    on_step: OnStep | None
    on_evaluation: OnEvaluation | None
    on_save: OnSave | None


def attach(
    trainer: Trainer[Any],
    callbacks: Callbacks,
    *,
    on_update: Callable[[Update], None],
    on_evaluation: Callable[[Evaluation], None],
    on_stop: Callable[[Plan], None],
) -> None:
    """Set the hooks of a trainer, so that it calls the run's journal and then the user's callbacks.

    Args:
        on_update: The journal's function for an update.
        on_evaluation: The journal's function for a validation.
        on_stop: Called with the plan that a callback has ended by `StopTraining`, to record it.
    """
    step, evaluated, saved = callbacks.get("on_step"), callbacks.get("on_evaluation"), callbacks.get("on_save")

    def call(callback: Callable[[Any], None], event: StepEvent | EvaluationEvent) -> None:
        try:
            callback(event)
        except StopTraining:
            if trainer.parallel.processes.size > 1:
                raise
            _stop(trainer, on_stop)
        except StoppedAtOnceError:
            raise
        except BaseException:  # sys.exit() too
            trainer.save()
            raise

    def after_update(update: Update) -> None:
        on_update(update)
        if step is not None:
            event = StepEvent(
                update=update.update,
                loss=update.loss,
                learning_rate=update.lr,
                gradient_norm=update.gradient_norm,
                tokens=update.tokens,
                seconds=update.seconds,
                skipped=update.skipped,
            )
            call(step, event)

    def after_evaluation(evaluation: Evaluation) -> None:
        on_evaluation(evaluation)
        if evaluated is not None:
            event = EvaluationEvent(evaluation.update, _read_only(evaluation.scores), evaluation.is_average)
            call(evaluated, event)

    def after_save(path: Path) -> None:
        if saved is not None:
            saved(SaveEvent(trainer.state.update, path, False, _read_only({})))

    trainer.on_update, trainer.on_evaluation, trainer.on_save = after_update, after_evaluation, after_save


def report_model_saved(callbacks: Callbacks, update: int, path: Path, scores: Mapping[str, float]) -> None:
    """Call the `on_save` callback, if there is one, for the finished model in the folder `path`."""
    saved = callbacks.get("on_save")
    if saved is not None:
        saved(SaveEvent(update, path, True, _read_only(scores)))


def _stop(trainer: Trainer[Any], record: Callable[[Plan], None]) -> None:
    """End the plan of a trainer at the updates made so far, unless they are all, and record the plan."""
    plan, made = trainer.plan, trainer.state.update
    if plan is None or made >= plan.end:
        return
    trainer.plan = plan.ended(made)
    trainer.correct = lambda state: None  # --minutes would plan more updates
    record(trainer.plan)
    trainer.warn(f"a callback ended the training after {made:,} of {counted(plan.end, 'updates')}")


def _read_only(scores: Mapping[str, float]) -> Mapping[str, float]:
    return MappingProxyType(dict(scores))
