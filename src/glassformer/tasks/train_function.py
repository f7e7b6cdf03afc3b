"""The function `glassformer.train`, which trains a model with the options of the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from glassformer.base.dataclass_flags import options_of
from glassformer.checkpoint.summary import summarize
from glassformer.progress import say
from glassformer.tasks.configs.defaults import Size, preset_options
from glassformer.tasks.configs.shared import TaskConfig
from glassformer.tasks.configs.task_options import given_options, make_config
from glassformer.tasks.recipes import read_recipe
from glassformer.tasks.task_registry import config_named, task_named

if TYPE_CHECKING:
    from glassformer.metrics.scores import Scores
    from glassformer.tasks.task import Task
    from glassformer.training.callbacks import OnEvaluation, OnSave, OnStep


def train(
    task: str,
    *,
    out: str | Path,
    recipe: str | Path | None = None,
    restart: bool = False,
    accept_changes: bool = False,
    overwrite: bool = False,
    size: Size = "auto",
    preset: str = "",
    on_step: "OnStep | None" = None,
    on_evaluation: "OnEvaluation | None" = None,
    on_save: "OnSave | None" = None,
    **options: Any,
) -> "Scores":
    """Train a model for a task into the folder `out` and return its scores, as `glassformer train TASK` does.

    >>> import glassformer as gf
    >>> scores = gf.train("classification", data="reviews.tsv", out="my-classifier", minutes=5)
    >>> 0 <= scores["accuracy"] <= 100
    True

    Called again with the same options, it resumes an interrupted run. The scores are on the test examples, or on the
    validation examples if there is no test split. `glassformer.load(out)` loads the model.

    One training may run in a process at a time; a second one raises RuntimeError. The global random numbers of torch
    and Python are afterwards as they were before, so that they may draw the settings of several trainings.

    Args:
        task: A task, such as "translation" or "classification".
        out: The model folder to write. The folder `out.run` next to it holds the checkpoints.
        recipe: A TOML file with options. `options` override it.
        restart: Discard the run in `out.run` and start anew.
        accept_changes: Continue from the newest checkpoint with other settings or other data. `**{"continue": True}`,
            as the command line spells it, is the same.
        overwrite: Replace a model in `out` that another run wrote. Other files are never replaced.
        size: The size of the model: "tiny", "small", "base", or "auto" to fit it to the data and the time.
        preset: A model family whose architecture to use, such as "llama"; the size is still chosen by `size`.
        on_step: Called after each update. If a callback raises, a checkpoint is saved and the run can be resumed.
            `glassformer.StopTraining` ends the training and keeps the model.
        on_evaluation: Called after each validation.
        on_save: Called after each new checkpoint, and after the model was saved.
        options: Any option of the command line with underscores for hyphens: `source`, `minutes`, `d_model`, `lr`, and
            `start_from` for `--from`. Paths may be `str` or `Path`. Options that take several values on the command
            line accept one value or a list.
    """
    kind = config_named(task)
    accept_changes = accept_changes or bool(options.pop("continue", False))
    given = given_options(kind, options)
    request = read_request(task, given, recipe=None if recipe is None else Path(recipe), size=size, preset=preset)
    return request.make().train(
        out,
        restart=restart,
        accept_changes=accept_changes,
        overwrite=overwrite,
        on_step=on_step,
        on_evaluation=on_evaluation,
        on_save=on_save,
    )


class TrainRequest(NamedTuple):
    """The name of a task and its checked options. Creating it does not import torch."""

    task: str
    config: TaskConfig
    """The given options, with defaults for the remaining ones."""
    given: Mapping[str, Any] | None
    """Given options by dotted name; training chooses the remaining ones. None if `config` is complete."""
    size: Size
    """Size of the model, for that choice."""

    def make(self) -> "Task[Any, Any]":
        """Return a task object with these options, whose `train` can be called."""
        made = task_named(self.task)(self.config)
        made.given, made.size = self.given, self.size
        return made


def read_request(
    task: str, given: Mapping[str, Any], *, recipe: Path | None = None, size: Size = "auto", preset: str = ""
) -> TrainRequest:
    """Check the options `given` for a task, by dotted name, and return them as a request.

    Without a recipe, training chooses the remaining options for the data and the time. With a recipe they have fixed
    defaults, so that the same recipe gives the same model on every machine; `given` overrides the recipe.
    """
    kind = config_named(task)
    if size not in get_args(Size):
        raise ValueError(f"size={size!r}: expected one of {', '.join(get_args(Size))}")
    if recipe is None:
        given = {**(preset_options(kind, preset) if preset else {}), **given}
        return TrainRequest(task, make_config(kind, given), given, size)
    if size != "auto" or preset:
        raise ValueError("--recipe describes the whole model: expected no --size and no --preset beside it")
    values = {**read_recipe(recipe, kind), **given}
    return TrainRequest(task, make_config(kind, {**values, **_fitting_context(kind, values)}), None, size)


def _fitting_context(kind: type[TaskConfig], values: Mapping[str, Any]) -> dict[str, int]:
    """Return the limit of the model of --from as the context, if no context is given and the default exceeds it."""
    default = {option.path: option.default for option in options_of(kind).values()}.get("context")
    start = values.get("start_from")
    if default is None or "context" in values or start is None or not start.exists():
        return {}
    limit = summarize(start).config.max_len
    if limit is None or limit >= default:
        return {}
    say(f"context: {limit} tokens, the limit of --from {start}; the recipe gives no context")
    return {"context": limit}
