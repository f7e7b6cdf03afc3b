"""`glassformer eval MODEL` for a pretrained model.

A decoder is scored by the perplexity of texts and by multiple choice, other models by the scores of a task.
"""

import json as json_module
import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.process import computing_for_long
from glassformer.cli.run_options import ComputeOptions
from glassformer.progress import Step, reporting

if TYPE_CHECKING:
    from glassformer.metrics import Scores
    from glassformer.models import ModelConfig

ENCODER_TASKS = {"sequence_class": "classification", "token_class": "tagging", "span": "extraction"}
"""The task of an encoder by its head."""
WRITING_TASKS = ("translation", "summarization", "answering")
"""Tasks of an encoder-decoder."""
_LOG = logging.getLogger(__name__)


def choose_task(folder: str, config: "ModelConfig", arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the task that a pretrained model is scored for, and the arguments that are left.

    The task is under "task", as in `task.json`. An encoder-decoder may have it in the arguments, as --task.
    """
    left = [one for one in arguments if one != "--allow-pickle"]
    if config.kind == "encoder_decoder":
        asked, left = _take_option(left, "--task")
        task = WRITING_TASKS[0] if asked is None else asked
        if task not in WRITING_TASKS:
            raise UsageError(f"--task {task}: expected one of {', '.join(WRITING_TASKS)}")
        return {"task": task}, left
    if config.head not in ENCODER_TASKS or (config.head, config.n_labels) == ("sequence_class", 1):
        raise ValueError(
            f"{folder} is an encoder without classes (its head is {config.head!r}): expected a head for classes of "
            f"texts or tokens, or for spans. glassformer run {folder} --input FILE --output NEW_FILE writes its answers"
        )
    return {"task": ENCODER_TASKS[config.head]}, left


def for_task(pipeline: Any, task: str, data: Any) -> Any:
    """Return the pipeline that scores a task: for a `TextToText` that of the task, otherwise `pipeline` itself.

    A pretrained translator of many languages is set to the languages of the data. If the model's files have settings
    for the task (`TextToText.tasks`), they are used.
    """
    from glassformer.pipelines.pipeline_registry import pipeline_named
    from glassformer.pipelines.text_to_text import TextToText

    if not isinstance(pipeline, TextToText):
        return pipeline
    codes = [side.code for side in data.languages()] if task == "translation" else []
    name = "_to_".join((f"translation_{codes[0]}", codes[1])) if codes else task  # HF's name of the task
    if name in pipeline.tasks:
        pipeline = pipeline.with_task(name)
    elif any(one.startswith(task) for one in pipeline.tasks):
        _LOG.warning("the model's tasks are %s, not %s: no prefix is used", ", ".join(pipeline.tasks), name)
    if task == "translation":
        if pipeline.languages is not None:
            pipeline = pipeline.with_languages(*codes)
            pipeline.check_languages()
        return pipeline
    if pipeline.languages is not None:
        raise ValueError(f"--task {task}: the model has language codes: expected --task translation")
    tokenizers = pipeline.source_tokenizer, pipeline.target_tokenizer
    found = pipeline_named(task)(pipeline.model, *tokenizers, pipeline.generation)
    found.begin, found.end = pipeline.begin, -1 if tokenizers[1].end is None else tokenizers[1].end
    found.batch_tokens, found.source_prefix = pipeline.batch_tokens, pipeline.source_prefix
    return found


def _take_option(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Return the value of an option, None if it is not given, and the other arguments."""
    left = list(arguments)
    for place, one in enumerate(arguments):
        if one.startswith(f"{flag}="):
            return left.pop(place).partition("=")[2], left
        if one == flag:
            if place + 1 == len(arguments):
                raise UsageError(f"{flag} needs a value: expected one of {', '.join(WRITING_TASKS)}")
            return arguments[place + 1], [*arguments[:place], *arguments[place + 2 :]]
    return None, left


def evaluate_pretrained(
    path: Path,
    *,
    data: tuple[Path, ...] = (),
    choices: tuple[Path, ...] = (),
    on_bad: Literal["error", "skip"] = "error",
    context: int | None = None,
    stride: int | None = None,
    json: bool = False,
    quiet: bool = False,
    allow_pickle: bool = False,
    compute: ComputeOptions = ComputeOptions(),  # noqa: B008
) -> None:
    """Score a pretrained decoder (GPT-2, Llama, Qwen, a GGUF file) on your own data.

    With --data it computes perplexity and bits per byte of texts. Bits per byte are comparable between tokenizers. With
    --choices it answers multiple-choice questions with the most likely choice.

    Args:
        path: A Hugging Face folder, a GGUF or llama2.c file, or org/name for a model in the download cache.
        data: Text files. Each file is one text.
        choices: JSONL files of questions: question, choices (a list), and answer (index from 0, letter or text).
        on_bad: What to do with a bad question: stop with an error that names its line, or skip and count it.
        context: Tokens in a window over a text. (default: 1024, or the limit of the model if it is lower)
        stride: Tokens that the window moves by. Fewer are more exact and slower. (default: half the context)
        json: Print one JSON object.
        quiet: Show no progress.
        allow_pickle: Also read weights from pytorch_model.bin, with a reader that accepts only tensors.
    """
    if not data and not choices:
        raise UsageError(f"eval needs data: expected --data PATH ... or --choices PATH ... after {path}")
    if not choices and on_bad != "error":
        raise UsageError(f"--on-bad {on_bad} has no effect without --choices: leave it out")
    if not data and (context is not None or stride is not None):
        raise UsageError("--context and --stride have no effect without --data: leave them out")
    from glassformer.data.readers.multiple_choice import read_multiple_choice
    from glassformer.data.readers.text_files import check_file, read_text

    for file in data:
        check_file(file)
    texts = [read_text(file) for file in data]
    skipped: Counter[str] = Counter()
    questions = list(read_multiple_choice(choices, on_bad, skipped))
    with reporting(quiet=quiet), Step("loading torch"):
        pipeline = compute.load(path, allow_pickle=allow_pickle)
    from glassformer.pipelines.decoder_evaluation import score_multiple_choice, score_texts_by_perplexity, window_of
    from glassformer.pipelines.generator import Generator
    from glassformer.pipelines.language_model import windows_in_words

    if not isinstance(pipeline, Generator):
        raise ValueError(
            f"{path} is of kind {pipeline.model.kind!r}: expected a decoder, whose texts have log-probabilities. "
            f"glassformer run {path} --input FILE --output NEW_FILE writes its answers"
        )
    results: dict[str, Scores] = {}
    scored_on: list[str] = []
    with reporting(quiet=quiet), computing_for_long():
        if texts:
            results["text"] = score_texts_by_perplexity(pipeline, texts, context=context, stride=stride)
        if choices:
            results["choices"] = score_multiple_choice(pipeline, questions)
    if texts:
        n_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
        scored_on.append(f"{n_bytes:,} bytes in {windows_in_words(*window_of(pipeline, context, stride))}")
    if choices:
        left_out = f" ({skipped.total():,} bad ones skipped)" if skipped else ""
        scored_on.append(f"{len(questions):,} questions{left_out}")
    _print(results, ", ".join(scored_on), as_json=json)


def _print(results: "dict[str, Scores]", scored_on: str, *, as_json: bool) -> None:
    from glassformer.metrics.scores import in_digits, title_of

    values: dict[str, Any] = {name: value for scores in results.values() for name, value in scores.values.items()}
    if as_json:
        print(json_module.dumps({**values, "scored_on": scored_on}))
        return
    for name, value in values.items():
        print(f"{title_of(name)} {in_digits(name, value)}")
    print(f"scored on {scored_on}")
