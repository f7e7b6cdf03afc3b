"""`glassformer eval MODEL` for a model of another library: perplexity of texts, and multiple choice."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.process import computing_for_long
from glassformer.cli.run_options import ComputeOptions
from glassformer.progress import Step, reporting

if TYPE_CHECKING:
    from glassformer.metrics import Scores


def evaluate_pretrained(
    path: Path,
    *,
    data: tuple[Path, ...] = (),
    choices: tuple[Path, ...] = (),
    context: int | None = None,
    stride: int | None = None,
    json: bool = False,
    quiet: bool = False,
    allow_pickle: bool = False,
    compute: ComputeOptions = ComputeOptions(),  # noqa: B008
) -> None:
    """Score a decoder of another library (GPT-2, Llama, Qwen, a GGUF file) on your own data.

    With --data it computes perplexity and bits per byte of texts. Bits per byte are comparable between tokenizers. With
    --choices it answers multiple-choice questions with the most likely choice.

    Args:
        path: A Hugging Face folder, a GGUF or llama2.c file, or org/name for a model in the download cache.
        data: Text files. Each file is one text.
        choices: JSONL files of questions: question, choices (a list), and answer (index from 0, letter or text).
        context: The tokens that a window over a text reads. (default: 1024, or the limit of the model if it is lower)
        stride: The tokens that the window moves. Less is more exact and slower. (default: half the context)
        json: Print one JSON object.
        quiet: Print no progress.
        allow_pickle: Also read weights from pytorch_model.bin, with a reader that accepts only tensors.
    """
    if not data and not choices:
        raise UsageError(f"eval needs data: expected --data PATH ... or --choices PATH ... after {path}")
    if not data and (context is not None or stride is not None):
        raise UsageError("--context and --stride have no effect without --data: leave them out")
    from glassformer.data.readers.multiple_choice import read_multiple_choice
    from glassformer.data.readers.text_files import check_file, read_text

    for file in data:
        check_file(file)
    texts = [read_text(file) for file in data]
    questions = list(read_multiple_choice(choices))
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
    with computing_for_long():
        if texts:
            results["text"] = score_texts_by_perplexity(pipeline, texts, context=context, stride=stride)
        if choices:
            results["choices"] = score_multiple_choice(pipeline, questions)
    if texts:
        n_bytes = sum(len(text.encode("utf-8", "replace")) for text in texts)
        scored_on.append(f"{n_bytes:,} bytes in {windows_in_words(*window_of(pipeline, context, stride))}")
    if choices:
        scored_on.append(f"{len(questions):,} questions")
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
