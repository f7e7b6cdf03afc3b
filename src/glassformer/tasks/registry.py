"""The tasks by name. What a task needs is imported when it is asked for, and torch only with the task itself."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from glassformer.base.checks import shown
from glassformer.base.names import suggestion

if TYPE_CHECKING:
    from glassformer.tasks.configs.shared import TaskConfig
    from glassformer.tasks.task import Task

TASK = "task.json"
"""The file of a model folder that says what the model does."""


class Entry(NamedTuple):
    """Where a task's class and its config live, and what `--help` says of it."""

    task: str
    """Module and class below `glassformer.tasks`. Importing it imports torch."""
    config: str
    """Module and class below `glassformer.tasks.configs`. Importing it does not import torch."""
    about: str


TASKS = {
    "classification": Entry(
        "classification.Classification",
        "classification.ClassificationConfig",
        "a classifier from labelled texts or pairs of texts",
    ),
    "similarity": Entry(
        "similarity.Similarity",
        "similarity.SimilarityConfig",
        "a model that scores how alike two texts are, and makes vectors of texts",
    ),
    "tagging": Entry(
        "tagging.Tagging", "tagging.TaggingConfig", "a tagger of names and other entities from tagged sentences"
    ),
    "summarisation": Entry(
        "summarisation.Summarisation",
        "summarisation.SummarisationConfig",
        "a summarizer from texts and their summaries",
    ),
    "answering": Entry(
        "answering.Answering",
        "questions.AnsweringConfig",
        "a model that answers questions about a text in its own words",
    ),
    "extraction": Entry(
        "extraction.Extraction",
        "questions.ExtractionConfig",
        "a model that finds the answer to a question in a text",
    ),
    "denoising": Entry(
        "denoising.Denoising",
        "pretraining.DenoisingConfig",
        "an encoder-decoder like T5 and BART, pretrained on plain texts",
    ),
    "masking": Entry("masking.Masking", "pretraining.MaskingConfig", "an encoder like BERT, pretrained on plain texts"),
    "code": Entry("code.Code", "language.CodeConfig", "a model that completes source code and fills in gaps"),
    "language": Entry("language.Language", "language.LanguageConfig", "a language model like GPT, from plain texts"),
    "translation": Entry(
        "translation.Translation", "translation.TranslationConfig", "a translator from sentence pairs"
    ),
}


def task_named(name: str) -> "type[Task[Any, Any]]":
    """The class of a task."""
    found: type[Task[Any, Any]] = _imported("glassformer.tasks", _entry(name).task)
    return found


def config_named(name: str) -> "type[TaskConfig]":
    """The class of a task's config. Does not import torch."""
    found: type[TaskConfig] = _imported("glassformer.tasks.configs", _entry(name).config)
    return found


def data_named(name: str) -> type[Any]:
    """The class that says where a task's examples come from. Does not import torch."""
    found: type[Any] = get_type_hints(config_named(name))["data"]
    return found


def _entry(name: str) -> Entry:
    if name not in TASKS:
        raise ValueError(f"{shown(name)} is no task: {suggestion(name, TASKS)}")
    return TASKS[name]


def _imported(package: str, path: str) -> Any:
    module, name = path.split(".")
    return getattr(import_module(f"{package}.{module}"), name)


def read_about(folder: Path) -> dict[str, Any]:
    """What a folder of ours says of itself: its task, and the task's own settings."""
    from glassformer.checkpoint.safe_files import MANIFEST, CorruptFolderError, SealedFolder, read_json_object

    if not (folder / MANIFEST).exists() and not (folder / TASK).exists():
        return {"task": "translation"}  # the reader of the model refuses a folder that is not ours
    sealed = SealedFolder(folder)
    if not sealed.has(TASK):
        return {"task": "translation"}  # folders were all of one kind once
    about = read_json_object(sealed.file(TASK))
    name = about.get("task")
    if not isinstance(name, str) or name not in TASKS:
        raise CorruptFolderError(f"{folder / TASK} names the task {shown(name)}: expected one of {', '.join(TASKS)}")
    return about
