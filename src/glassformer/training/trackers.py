"""Callbacks that send losses and scores of a training run to Weights & Biases or MLflow.

Each tracker's package is imported when its callbacks are created.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from glassformer.training.callbacks import Callbacks, EvaluationEvent, SaveEvent, StepEvent

MLFLOW_BATCH = 100
"""MLflow takes at most this many parameters in one call."""


def wandb_callbacks(
    project: str = "glassformer",
    *,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    every: int = 10,
    **init: Any,
) -> Callbacks:
    """Return callbacks that log to Weights & Biases: `task.train("m", **wandb_callbacks("my-project"))`.

    Logs to the active wandb run, or starts one at the first event and ends it when the model is saved. No files are
    uploaded.

    Args:
        project: The project of a new run.
        name: The name of a new run; None lets wandb choose one.
        config: Settings to store with a new run, such as `dataclasses.asdict(task.config)`.
        every: Log one of this many updates. Validations are always logged.
        init: More arguments of `wandb.init`, such as `mode="offline"` or `id="..."`.
    """
    _check_every(every)
    wandb = _import("wandb", "Weights & Biases")
    active = wandb.run

    @cache
    def run() -> Any:
        return active or wandb.init(project=project, name=name, config=dict(config or {}), **init)

    def log(values: Mapping[str, float], update: int) -> None:
        run().log(values, step=update)

    def finish(event: SaveEvent) -> None:
        run().summary.update({**_named("final/", event.scores), "model_folder": str(event.path)})
        if active is None:
            run().finish()

    return _callbacks(every, log, finish)


def mlflow_callbacks(
    experiment: str = "glassformer",
    *,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    every: int = 10,
) -> Callbacks:
    """Return callbacks that log to MLflow: `task.train("m", **mlflow_callbacks("my-experiment"))`.

    Logs to the active MLflow run, or starts one at the first event and ends it when the model is saved. No files are
    uploaded.

    Args:
        experiment: The experiment of a new run.
        name: The name of a new run; None lets MLflow choose one.
        config: Settings to log as parameters; nested settings get dotted names, such as `train.lr`.
        every: Log one of this many updates. Validations are always logged.
    """
    _check_every(every)
    mlflow = _import("mlflow", "MLflow")
    active = mlflow.active_run()

    @cache
    def start() -> None:
        if active is None:
            mlflow.set_experiment(experiment)
            mlflow.start_run(run_name=name)
        settings = list(_flatten(config or {}).items())
        for first in range(0, len(settings), MLFLOW_BATCH):
            mlflow.log_params(dict(settings[first : first + MLFLOW_BATCH]))

    def log(values: Mapping[str, float], update: int) -> None:
        start()
        mlflow.log_metrics({_mlflow_name(key): value for key, value in values.items()}, step=update)

    def finish(event: SaveEvent) -> None:
        log(_named("final/", event.scores), event.update)
        mlflow.set_tag("model_folder", str(event.path))
        if active is None:
            mlflow.end_run()

    return _callbacks(every, log, finish)


TRACKERS: dict[str, Callable[..., Callbacks]] = {"wandb": wandb_callbacks, "mlflow": mlflow_callbacks}
"""The functions that create tracking callbacks, by the name of the tracker's package."""


def _callbacks(
    every: int, log: Callable[[Mapping[str, float], int], None], finish: Callable[[SaveEvent], None]
) -> Callbacks:
    """Return callbacks that pass every `every`-th update and all validations to `log`.

    `log` takes values by name and the update's number. `finish` is called when the finished model is saved.
    """

    def on_step(event: StepEvent) -> None:
        if event.update % every == 0:
            values = {"loss": event.loss, "learning_rate": event.learning_rate, "gradient_norm": event.gradient_norm}
            log(_named("train/", values), event.update)

    def on_evaluation(event: EvaluationEvent) -> None:
        if not event.is_average:
            log(_named("valid/", event.scores), event.update)

    def on_save(event: SaveEvent) -> None:
        if event.is_model:
            finish(event)

    return {"on_step": on_step, "on_evaluation": on_evaluation, "on_save": on_save}


def _named(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}{name}": value for name, value in values.items()}


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested settings by dotted name, such as "train.lr"."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = value if isinstance(value, Mapping) else {}
        found |= _flatten(inner, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found


def _mlflow_name(name: str) -> str:
    """Return a metric's name with "_" in place of each character that MLflow does not allow."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)


def _check_every(every: int) -> None:
    if every < 1:
        raise ValueError(f"every={every}: expected at least 1")


def _import(package: str, title: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f"{title} is not installed: pip install {package}") from error
