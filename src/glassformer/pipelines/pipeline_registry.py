"""The registry of tasks, and `task.json`, the file that names the task of a model folder. Imports no torch."""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from glassformer.base.checks import shown
from glassformer.base.names import suggestion

TASK = "task.json"
"""The file of a model folder that names the task and holds the pipeline's settings."""
RunOption = Literal["n_best", "scores", "embed", "stop", "writing", "decoding", "languages", "tasks"]
"""An option of `glassformer run`, or a group of options, that only some models take. The group `writing` is for models
that generate text (`WritingOptions` without `stop`), `decoding` for models that continue a text (`DecoderOptions`),
`languages` for pretrained translators of many languages (`LanguageOptions`), and `tasks` for pretrained
encoder-decoders (`TaskOptions`)."""


class PipelineEntry(NamedTuple):
    """A task's entry in the registry: its pipeline class, and how the command line names and treats its models."""

    path: str
    """Module and class of the pipeline below `glassformer.pipelines`. Importing it imports torch."""
    called: str
    """What error messages call such a model: "a translator"."""
    takes: tuple[RunOption, ...]
    """The options of `glassformer run` that such a model takes, in addition to those that all models take."""
    about: str = ""
    """A description of the model and its training data, for `glassformer train --help`."""
    has_demo: bool = True
    """Whether `glassformer demo` can show it. A task that needs a pretrained model has none."""


DENOISER_OPTIONS: tuple[RunOption, ...] = ("n_best", "scores", "writing")
SEQ2SEQ_OPTIONS: tuple[RunOption, ...] = (*DENOISER_OPTIONS, "stop")
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
        DENOISER_OPTIONS,
        "an encoder-decoder like T5 and BART, pretrained on plain texts",
    ),
    "masking": PipelineEntry(
        "mask_filler.MaskFiller",
        "a masked language model",
        ("n_best", "scores", "embed"),
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
    "chat": PipelineEntry(
        "chat_model.ChatModel",
        "a chat model",
        DECODER_OPTIONS,
        "a chat model, from a pretrained decoder and conversations",
        has_demo=False,
    ),
    "preference": PipelineEntry(
        "chat_model.PreferenceModel",
        "a chat model with preferences",
        DECODER_OPTIONS,
        "a chat model, from a pretrained decoder and preferred answers (DPO)",
        has_demo=False,
    ),
    "translation": PipelineEntry(
        "translator.Translator", "a translator", SEQ2SEQ_OPTIONS, "a translator from sentence pairs"
    ),
}
"""The registry: each task's name in `task.json` and on the command line, and its entry, in the order of `--help`."""
RENAMED_TASKS = {"summarisation": "summarization"}
"""Task names that version 0.1 spelled differently, and their new names. Model folders with the old names still load."""
FIRST_TASK = "translation"
"""The task of model folders without `task.json`, which were written when there was only this task."""
DATA_SETTINGS = ("data", "language_origins")
"""Entries of `task.json` about the training data. The other entries are "task" and the settings of the pipeline."""


def demo_tasks() -> dict[str, PipelineEntry]:
    """Return the entries of the tasks that `glassformer demo` can show, by name."""
    return {name: entry for name, entry in PIPELINES.items() if entry.has_demo}


def pipeline_named(task: str) -> type[Any]:
    """Return the pipeline class of a task, a subclass of `TrainedPipeline`. Imports torch."""
    if task not in PIPELINES:
        raise ValueError(f"unknown task {shown(task)}: {suggestion(task, PIPELINES)}")
    module, name = PIPELINES[task].path.split(".")
    found: type[Any] = getattr(import_module(f"glassformer.pipelines.{module}"), name)
    return found


def read_about(folder: Path) -> dict[str, Any]:
    """Return the contents of a model folder's `task.json`: the task's name under "task", and the pipeline's settings.

    The task of a folder with a tokenizer and without this file is taken to be "translation". Raises ValueError for a
    folder of ours without both, which holds a model alone.
    """
    from glassformer.checkpoint.safe_files import MANIFEST, CorruptFolderError, SealedFolder, read_json_object

    if not (folder / MANIFEST).exists() and not (folder / TASK).exists():
        return {"task": FIRST_TASK}  # not a folder of ours: loading the model raises the error
    sealed = SealedFolder(folder)
    if not sealed.has(TASK):
        if not any(sealed.has(name) for name in ("tokenizer.json", "source_tokenizer.json")):
            raise ValueError(
                f"{folder} holds a model without tokenizer and {TASK}: expected a folder that training or the save "
                "method of a pipeline wrote. load_model of glassformer.checkpoint reads the model alone"
            )
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
