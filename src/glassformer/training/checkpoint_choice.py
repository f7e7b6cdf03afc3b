"""Which checkpoints of a run are kept, which validation is the best, and the parameters that the run ends with."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.base.names import suggestion
from glassformer.checkpoint.model_folder import load_parameters
from glassformer.checkpoint.output_folder import discard_folder
from glassformer.metrics.scores import LOWER_IS_BETTER
from glassformer.training.lora import fold_adapters
from glassformer.training.state import Evaluation, average_parameters, checkpoint_path, read_weights, saved_positions
from glassformer.training.train_config import TrainConfig

AnyTrainer = Any
"""A `glassformer.training.trainer.Trainer`. That module imports this one, so it cannot be named here."""


def choose_parameters(trainer: AnyTrainer) -> dict[str, Tensor]:
    """Load and return the best checkpoint's parameters, or the average of the last ones if as good or better.

    In a run of several processes, only the leader reads and returns them; it sends the values to all.
    """
    config, folder, parallel = trainer.config, trainer.folder, trainer.parallel
    best, processes = trainer.best(), parallel.processes
    assert best is not None
    parallel.collect(trainer.model, trainer.whole_model)
    model = trainer.model = trainer.whole_model
    average: dict[str, Tensor] | None = None
    chosen: dict[str, Tensor] = {}

    def load(parameters: dict[str, Tensor], what: str) -> None:
        with processes.together():
            if processes.is_leader:
                load_parameters(model, parameters, what)
        parallel.spread(model)

    with processes.together():
        if processes.is_leader:
            chosen = best_parameters(folder, best)
            average = last_average(folder, config, partial(fold_adapters, model))
    if processes.broadcast(average is not None):
        load(average or {}, "the average")
        trainer.validate(is_average=True)
        averaged = trainer.state.evaluations.pop()
        if average is not None and ranking_score(averaged, config.metric) >= ranking_score(best, config.metric):
            chosen = average
    load(chosen, "the chosen parameters")
    model.eval()
    return chosen


def ranking_score(evaluation: Evaluation, metric: str) -> float:
    """Return the score that decides which checkpoint is best, negated if lower is better; -inf for NaN.

    `metric` names the score; empty is the first one.
    """
    metric = metric or next(iter(evaluation.scores))
    if metric not in evaluation.scores:
        raise ValueError(f"metric={metric!r} is not a validation score: {suggestion(metric, evaluation.scores)}")
    score = evaluation.scores[metric]
    if math.isnan(score):
        return -math.inf
    return -score if metric in LOWER_IS_BETTER else score


def best_evaluation(evaluations: Iterable[Evaluation], metric: str) -> Evaluation | None:
    """Return the best validation, the earliest one if several are equal; None if there is none."""
    return max(evaluations, key=lambda evaluation: ranking_score(evaluation, metric), default=None)


def discard_old(folder: Path, best: Evaluation | None, config: TrainConfig) -> None:
    """Keep only the newest checkpoint, the best one, and the last `keep_last` at multiples of `save_every`."""
    positions = saved_positions(folder)
    kept = {positions[-1], *_regular(positions, config)[-config.keep_last :]}
    for position in positions:
        if position not in kept and (best is None or position != best.position):
            discard_folder(checkpoint_path(folder, position))


def best_parameters(folder: Path, best: Evaluation) -> dict[str, Tensor]:
    """Return the parameters of the best checkpoint, or of the newest one if that does not exist any more."""
    positions = saved_positions(folder)
    position = best.position if best.position in positions else positions[-1]
    return read_weights(checkpoint_path(folder, position))


def last_average(
    folder: Path, config: TrainConfig, fold: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> dict[str, Tensor] | None:
    """Return the mean of the parameters of the last `average_last` checkpoints; None if there are not several.

    `fold` is the argument of `average_parameters`.
    """
    if config.average_last < 2:
        return None
    last = _regular(saved_positions(folder), config)[-config.average_last :]
    return average_parameters(folder, last, fold) if len(last) > 1 else None


def _regular(positions: list[int], config: TrainConfig) -> list[int]:
    """Return those of `positions` that are multiples of `save_every`.

    Only their checkpoints are averaged, so that an interrupted run, which saved one more, averages the same ones.
    """
    return [position for position in positions if position % config.save_every == 0]
