"""Find a task by its name. A task's module is imported when it is asked for. It imports torch only when it trains.

To add a task `tagging`: write `tasks/tagging.py` with a class `Tagging` derived from `EncoderTask`, `Seq2SeqTask`,
`DecoderTask` or `PairTask`, and with its `Config`; write the pipeline that uses the trained model in `pipelines/`, or
take one that fits; and list both with one entry of `PIPELINES` in `pipelines/pipeline_registry.py`. Nothing else names
a task.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassformer.base.checks import shown
from glassformer.base.names import suggestion
from glassformer.pipelines.pipeline_registry import PIPELINES, RENAMED_TASKS

if TYPE_CHECKING:
    from glassformer.tasks.configs.shared import TaskConfig
    from glassformer.tasks.task import Task


TASKS = PIPELINES
"""All tasks by name. The class of a task is in the module of its name: `Tagging` in `glassformer.tasks.tagging`."""


def task_named(name: str) -> "type[Task[Any, Any]]":
    """Return the class of the task with this name; ValueError if there is none. Does not import torch."""
    if name not in TASKS:
        raise ValueError(unknown_task(name))
    found: type[Task[Any, Any]] = getattr(import_module(f"glassformer.tasks.{name}"), name.capitalize())
    return found


def config_named(name: str) -> "type[TaskConfig]":
    """Return the config class of the task with this name. Does not import torch."""
    return task_named(name).Config


def data_named(name: str) -> type[Any]:
    """Return the class of the data options of the task with this name. Does not import torch."""
    return task_named(name).data_class()


def unknown_task(name: str) -> str:
    """Return the error message for a name that is not a task: its new name if it was renamed, or a suggestion."""
    if name in RENAMED_TASKS:
        return f"the task {name} is called {RENAMED_TASKS[name]} now: use train {RENAMED_TASKS[name]}"
    return f"{shown(name)} is not a task: {suggestion(name, TASKS)}"
