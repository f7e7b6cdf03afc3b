"""`task.json` of a model folder, which names the model's task, and the pipeline of each task. Imports no torch."""

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
    """The pipeline of a task: where its class is and which options of `glassformer run` it takes."""

    path: str
    """Module and class below `glassformer.pipelines`. Importing it imports torch."""
    called: str
    """What error messages call such a model: "a translator"."""
    takes: tuple[RunOption, ...]


SEQ2SEQ_OPTIONS: tuple[RunOption, ...] = ("n_best", "scores", "writing")
DECODER_OPTIONS: tuple[RunOption, ...] = (*SEQ2SEQ_OPTIONS, "decoding")
PIPELINES = {
    "classification": PipelineEntry("classifier.Classifier", "a classifier", ("n_best", "scores", "embed")),
    "similarity": PipelineEntry("comparer.Comparer", "a comparer of texts", ("embed",)),
    "paraphrase": PipelineEntry("comparer.ParaphraseDetector", "a paraphrase detector", ("embed",)),
    "tagging": PipelineEntry("tagger.Tagger", "a tagger", ("embed",)),
    "summarization": PipelineEntry("summarizer.Summarizer", "a summarizer", SEQ2SEQ_OPTIONS),
    "answering": PipelineEntry("answerer.Answerer", "an answerer", SEQ2SEQ_OPTIONS),
    "extraction": PipelineEntry("extractor.Extractor", "an extractor of answers", ("scores", "embed")),
    "denoising": PipelineEntry("denoiser.Denoiser", "a denoising model", SEQ2SEQ_OPTIONS),
    "masking": PipelineEntry("mask_filler.MaskFiller", "a masked language model", ("embed",)),
    "code": PipelineEntry("code_model.CodeModel", "a code model", DECODER_OPTIONS),
    "language": PipelineEntry("language_model.LanguageModel", "a language model", DECODER_OPTIONS),
    "translation": PipelineEntry("translator.Translator", "a translator", SEQ2SEQ_OPTIONS),
}
"""The pipeline of each task, by the name of the task in `task.json` and on the command line."""
RENAMED_TASKS = {"summarisation": "summarization"}
"""Tasks that version 0.1 spelled differently. Their model folders still load."""


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
        return {"task": "translation"}  # not a folder of ours: loading the model raises the error
    sealed = SealedFolder(folder)
    if not sealed.has(TASK):
        return {"task": "translation"}  # the first folders had no task.json, because there was one task
    about = read_json_object(sealed.file(TASK))
    name = about.get("task")
    if isinstance(name, str):
        about["task"] = name = RENAMED_TASKS.get(name, name)
    if not isinstance(name, str) or name not in PIPELINES:
        raise CorruptFolderError(
            f"{folder / TASK} names the task {shown(name)}: expected one of {', '.join(PIPELINES)}"
        )
    return about
