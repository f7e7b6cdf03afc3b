"""The tasks by name. What a task needs is imported when it is asked for."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from glassformer.nn.checks import shown

if TYPE_CHECKING:
    from glassformer.tasks.task import Task


TASK = "task.json"
"""The file of a model folder that names its task."""


class Entry(NamedTuple):
    """Where a task lives, and what `--help` says of it."""

    module: str
    name: str
    about: str


TASKS = {
    "classification": Entry("classification", "Classification", "labelled texts, or pairs of texts, to a classifier"),
    "similarity": Entry("similarity", "Similarity", "pairs of texts with scores to a comparer, and to vectors"),
    "tagging": Entry("tagging", "Tagging", "sentences whose words are tagged to a finder of names"),
    "summarisation": Entry("summarisation", "Summarisation", "texts and their summaries to a summariser"),
    "answering": Entry("answering", "Answering", "questions about texts to an answerer, in words of its own"),
    "extraction": Entry("extraction", "Extraction", "questions about texts to what finds the answer in the text"),
    "denoising": Entry("denoising", "Denoising", "texts alone to an encoder-decoder to begin with, as T5 and BART"),
    "masking": Entry("masking", "Masking", "texts alone to an encoder to begin with, as BERT"),
    "code": Entry("code", "Code", "source code to a model that completes it, and fills in"),
    "language": Entry("language", "Language", "texts to a model that goes on writing"),
    "translation": Entry("translation", "Translation", "sentence pairs to a translator"),
}


def task_named(name: str) -> "type[Task[Any, Any]]":
    """The class of a task."""
    if name not in TASKS:
        raise ValueError(f"{shown(name)} is no task: expected one of {', '.join(TASKS)}")
    entry = TASKS[name]
    found: type[Task[Any, Any]] = getattr(import_module(f"glassformer.tasks.{entry.module}"), entry.name)
    return found


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
