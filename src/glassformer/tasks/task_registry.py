"""The tasks by name. A task's module is imported when it is asked for. It imports torch only when it trains."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.base.checks import shown
from glassformer.base.names import suggestion
from glassformer.pipelines.pipeline_registry import RENAMED_TASKS

if TYPE_CHECKING:
    from glassformer.tasks.configs.shared import TaskConfig
    from glassformer.tasks.task import Task


class TaskEntry(NamedTuple):
    """Where a task's class is, and what `--help` says about it."""

    path: str
    """Module and class below `glassformer.tasks`."""
    about: str


TASKS = {
    "classification": TaskEntry("classification.Classification", "a classifier from labeled texts or pairs of texts"),
    "similarity": TaskEntry(
        "similarity.Similarity", "a model that scores how similar two texts are, and makes vectors of texts"
    ),
    "paraphrase": TaskEntry("paraphrase.Paraphrase", "a model that decides whether two texts mean the same"),
    "tagging": TaskEntry("tagging.Tagging", "a tagger of names and other entities from tagged sentences"),
    "summarization": TaskEntry("summarization.Summarization", "a summarizer from texts and their summaries"),
    "answering": TaskEntry("answering.Answering", "a model that answers questions about a text in its own words"),
    "extraction": TaskEntry("extraction.Extraction", "a model that finds the answer to a question in a text"),
    "denoising": TaskEntry("denoising.Denoising", "an encoder-decoder like T5 and BART, pretrained on plain texts"),
    "masking": TaskEntry("masking.Masking", "an encoder like BERT, pretrained on plain texts"),
    "code": TaskEntry("code.Code", "a model that completes source code and fills in gaps"),
    "language": TaskEntry("language.Language", "a language model like GPT, from plain texts"),
    "translation": TaskEntry("translation.Translation", "a translator from sentence pairs"),
}


def task_named(name: str) -> "type[Task[Any, Any]]":
    """Return the class of a task. Does not import torch."""
    if name not in TASKS:
        raise ValueError(unknown_task(name))
    module, class_name = TASKS[name].path.split(".")
    found: type[Task[Any, Any]] = getattr(import_module(f"glassformer.tasks.{module}"), class_name)
    return found


def config_named(name: str) -> "type[TaskConfig]":
    """Return the class of a task's config. Does not import torch."""
    return task_named(name).Config


def data_named(name: str) -> type[Any]:
    """Return the class of the options of a task's data. Does not import torch."""
    return task_named(name).data_class()


def unknown_task(name: str) -> str:
    """Return the error message about a name that is not a task."""
    if name in RENAMED_TASKS:
        return f"the task {name} is called {RENAMED_TASKS[name]} now: use train {RENAMED_TASKS[name]}"
    return f"{shown(name)} is not a task: {suggestion(name, TASKS)}"
