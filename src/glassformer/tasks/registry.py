"""The tasks by name. What a task needs is imported when it is asked for, and torch only with the task itself."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from glassformer.base.checks import shown

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
        "labelled texts, or pairs of texts, to a classifier",
    ),
    "similarity": Entry(
        "similarity.Similarity",
        "similarity.SimilarityConfig",
        "pairs of texts with scores to a comparer, and to vectors",
    ),
    "tagging": Entry(
        "tagging.Tagging", "tagging.TaggingConfig", "sentences whose words are tagged to a finder of names"
    ),
    "summarisation": Entry(
        "summarisation.Summarisation", "summarisation.SummarisationConfig", "texts and their summaries to a summariser"
    ),
    "answering": Entry(
        "answering.Answering", "questions.AnsweringConfig", "questions about texts to an answerer, in words of its own"
    ),
    "extraction": Entry(
        "extraction.Extraction",
        "questions.ExtractionConfig",
        "questions about texts to what finds the answer in the text",
    ),
    "denoising": Entry(
        "denoising.Denoising",
        "pretraining.DenoisingConfig",
        "texts alone to an encoder-decoder to begin with, as T5 and BART",
    ),
    "masking": Entry(
        "masking.Masking", "pretraining.MaskingConfig", "texts alone to an encoder to begin with, as BERT"
    ),
    "code": Entry("code.Code", "language.CodeConfig", "source code to a model that completes it, and fills in"),
    "language": Entry("language.Language", "language.LanguageConfig", "texts to a model that goes on writing"),
    "translation": Entry("translation.Translation", "translation.TranslationConfig", "sentence pairs to a translator"),
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
        raise ValueError(f"{shown(name)} is no task: expected one of {', '.join(TASKS)}")
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
