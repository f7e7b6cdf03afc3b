"""`task.json` of a model folder, which names the model's task, and the registry of tasks. Imports no torch."""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from glassformer.base.checks import shown
from glassformer.base.names import suggestion

TASK = "task.json"
"""The file of a model folder that names the task and holds the pipeline's settings."""
RunOption = Literal["n_best", "scores", "embed", "writing", "decoding"]
"""An option of `glassformer run` that only some models take, or a group of them: `writing` are the options of models
that write text, `decoding` those of models that continue a text."""


class PipelineEntry(NamedTuple):
    """A task's entry in the registry: its pipeline, what the command line calls its models, and what these take."""

    path: str
    """Module and class of the pipeline below `glassformer.pipelines`. Importing it imports torch."""
    called: str
    """What error messages call such a model: "a translator"."""
    takes: tuple[RunOption, ...]
    """The options of `glassformer run` that such a model takes, beside those of all models."""
    about: str = ""
    """A description of the model and its training data, for `glassformer train --help`."""


SEQ2SEQ_OPTIONS: tuple[RunOption, ...] = ("n_best", "scores", "writing")
DECODER_OPTIONS: tuple[RunOption, ...] = (*SEQ2SEQ_OPTIONS, "decoding")
PIPELINES = {
    "classification": PipelineEntry(
        "classifier.Classifier",
        "a classifier",
        ("n_best", "scores", "embed"),
        "a classifier from labeled texts or pairs of texts",
    ),
    "similarity": PipelineEntry(
        "comparer.Comparer",
        "a comparer of texts",
        ("embed",),
        "a model that scores how similar two texts are, and makes vectors of texts",
    ),
    "paraphrase": PipelineEntry(
        "comparer.ParaphraseDetector",
        "a paraphrase detector",
        ("embed",),
        "a model that decides whether two texts mean the same",
    ),
    "tagging": PipelineEntry(
        "tagger.Tagger", "a tagger", ("embed",), "a tagger of names and other entities from tagged sentences"
    ),
    "summarization": PipelineEntry(
        "summarizer.Summarizer", "a summarizer", SEQ2SEQ_OPTIONS, "a summarizer from texts and their summaries"
    ),
    "answering": PipelineEntry(
        "answerer.Answerer",
        "an answerer",
        SEQ2SEQ_OPTIONS,
        "a model that answers questions about a text in its own words",
    ),
    "extraction": PipelineEntry(
        "extractor.Extractor",
        "an extractor of answers",
        ("scores", "embed"),
        "a model that finds the answer to a question in a text",
    ),
    "denoising": PipelineEntry(
        "denoiser.Denoiser",
        "a denoising model",
        SEQ2SEQ_OPTIONS,
        "an encoder-decoder like T5 and BART, pretrained on plain texts",
    ),
    "masking": PipelineEntry(
        "mask_filler.MaskFiller",
        "a masked language model",
        ("embed",),
        "an encoder like BERT, pretrained on plain texts",
    ),
    "code": PipelineEntry(
        "code_model.CodeModel", "a code model", DECODER_OPTIONS, "a model that completes source code and fills in gaps"
    ),
    "language": PipelineEntry(
        "language_model.LanguageModel",
        "a language model",
        DECODER_OPTIONS,
        "a language model like GPT, from plain texts",
    ),
    "translation": PipelineEntry(
        "translator.Translator", "a translator", SEQ2SEQ_OPTIONS, "a translator from sentence pairs"
    ),
}
"""The registry of tasks, by their names in `task.json` and on the command line. The order is that of `--help`."""
RENAMED_TASKS = {"summarisation": "summarization"}
"""Tasks that version 0.1 spelled differently. Their model folders still load."""
FIRST_TASK = "translation"
"""The task of the first model folders. They have no `task.json`, because there was one task."""
DATA_SETTINGS = ("data", "language_origins")
"""Entries of `task.json` about the training data. All further entries are settings of the pipeline."""


def pipeline_named(task: str) -> type[Any]:
    """Return the pipeline class of a task, a subclass of `TrainedPipeline`. Imports torch."""
    if task not in PIPELINES:
        raise ValueError(f"unknown task {shown(task)}: {suggestion(task, PIPELINES)}")
    module, name = PIPELINES[task].path.split(".")
    found: type[Any] = getattr(import_module(f"glassformer.pipelines.{module}"), name)
    return found


def read_about(folder: Path) -> dict[str, Any]:
    """Return the contents of a folder's `task.json`: the task's name under "task", and the pipeline's settings."""
    from glassformer.checkpoint.safe_files import MANIFEST, CorruptFolderError, SealedFolder, read_json_object

    if not (folder / MANIFEST).exists() and not (folder / TASK).exists():
        return {"task": FIRST_TASK}  # not a folder of ours: loading the model raises the error
    sealed = SealedFolder(folder)
    if not sealed.has(TASK):
        return {"task": FIRST_TASK}
    about = read_json_object(sealed.file(TASK))
    name = about.get("task")
    if isinstance(name, str):
        about["task"] = name = RENAMED_TASKS.get(name, name)
    if not isinstance(name, str) or name not in PIPELINES:
        raise CorruptFolderError(
            f"{folder / TASK} names the task {shown(name)}: expected one of {', '.join(PIPELINES)}"
        )
    return about
