"""Callbacks of a training run: functions of the caller, called after each update, validation and save.

They receive copies, so they cannot change the training. An exception in a callback saves a checkpoint and ends the run;
the same call of `train` resumes it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

from glassformer.training.state import Evaluation
from glassformer.training.trainer import Trainer, Update


class StepEvent(NamedTuple):
    """What an `on_step` callback receives: the loss, learning rate, gradient norm and time of an update."""

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
    """What an `on_evaluation` callback receives: the scores of a validation."""

    update: int
    """Updates made so far."""
    scores: Mapping[str, float]
    """Scores by name. The first one selects the best checkpoint, unless the setting `metric` names another."""


class SaveEvent(NamedTuple):
    """A checkpoint or the finished model was saved."""

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
    """Callbacks by their argument names of `Task.train`: `task.train("m", **callbacks)`."""

    on_step: OnStep | None
    on_evaluation: OnEvaluation | None
    on_save: OnSave | None


def attach(
    trainer: Trainer[Any],
    callbacks: Callbacks,
    *,
    on_update: Callable[[Update], None],
    on_evaluation: Callable[[Evaluation], None],
) -> None:
    """Connect a trainer to the run's journal, given as two functions, and to the caller's callbacks after it."""
    step, evaluated, saved = callbacks.get("on_step"), callbacks.get("on_evaluation"), callbacks.get("on_save")

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
            _call(trainer, step, event)

    def after_evaluation(evaluation: Evaluation) -> None:
        on_evaluation(evaluation)
        if evaluated is not None:
            _call(trainer, evaluated, EvaluationEvent(evaluation.update, _read_only(evaluation.scores)))

    def after_save(path: Path) -> None:
        if saved is not None:
            saved(SaveEvent(trainer.state.update, path, False, _read_only({})))

    trainer.on_update, trainer.on_evaluation, trainer.on_save = after_update, after_evaluation, after_save


def tell_model_saved(callbacks: Callbacks, update: int, path: Path, scores: Mapping[str, float]) -> None:
    """Call `on_save` for the finished model folder."""
    saved = callbacks.get("on_save")
    if saved is not None:
        saved(SaveEvent(update, path, True, _read_only(scores)))


def _call(trainer: Trainer[Any], callback: Callable[[Any], None], event: StepEvent | EvaluationEvent) -> None:
    """Call a callback. If it raises, save a checkpoint before the exception ends the run."""
    try:
        callback(event)
    except Exception:
        trainer.save()
        raise


def _read_only(scores: Mapping[str, float]) -> Mapping[str, float]:
    return MappingProxyType(dict(scores))
