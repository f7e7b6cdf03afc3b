"""`glassformer run`: use a model on lines of text."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.launch import is_follower
from glassformer.cli.lines import CHUNK, FILE_CHUNK, check_files, check_stdin, run_lines
from glassformer.cli.process import computing_for_long
from glassformer.cli.run_options import (
    AnswerOptions,
    ComputeOptions,
    DecoderOptions,
    Given,
    LanguageOptions,
    LineOptions,
    TaskOptions,
    WritingOptions,
    check_ranges,
    check_taken,
    given_options,
    reporting_truncated,
    search_of,
)

if TYPE_CHECKING:
    from glassformer.decoding import GenerationConfig
    from glassformer.pipelines.generator import Generator
    from glassformer.pipelines.pipeline import LineAnswer, LineRequest

DECODER_CHUNK = 16
"""Number of lines that a decoder answers at a time, unless --batch-tokens is given. It is smaller than CHUNK, because
decoders write longer texts, and the tokens that they write are not counted when a batch is made."""


def run(
    path: Path,
    *,
    input_and_output: LineOptions = LineOptions(),  # noqa: B008
    answer: AnswerOptions = AnswerOptions(),  # noqa: B008
    writing: WritingOptions = WritingOptions(),  # noqa: B008
    decoder: DecoderOptions = DecoderOptions(),  # noqa: B008
    languages: LanguageOptions = LanguageOptions(),  # noqa: B008
    tasks: TaskOptions = TaskOptions(),  # noqa: B008
    compute: ComputeOptions = ComputeOptions(),  # noqa: B008
    embed: bool = False,
    allow_pickle: bool = False,
    parallel: str = "",
) -> None:
    """Use a model on lines of text: one line out for each line in.

    A model trained with Glassformer does its task with each line. What a pretrained model does (a Hugging Face folder,
    a GGUF file, a .bin file of llama2.c) depends on its architecture: an encoder-decoder (T5, BART, Marian) rewrites
    each line, a decoder (GPT-2, Llama, Mistral, Qwen) continues or answers it, and an encoder (BERT) turns it into a
    vector or does the task of its head.

    A file is read in large batches. The lines of a pipe are answered as they come: one by one if they come slowly, in
    batches if they come fast.

    Text is UTF-8. Blank lines stay blank. A line break inside an answer is printed as \\n. An option that has no effect
    on the model is refused.

    Args:
        path: A model folder, a GGUF or llama2.c file, or org/name for a model in Hugging Face's download cache. Nothing
            is downloaded.
        embed: Print a vector for each line, as a JSON list, instead of doing the task. For encoders.
        allow_pickle: Also read weights from pytorch_model.bin, with a reader that accepts only tensors.
        parallel: tensor=N divides the model among the N processes that torchrun started. Needs --input or --prompt.
    """
    decoder = replace(
        decoder,
        prompt=None if decoder.prompt is None else _as_utf8(decoder.prompt),
        system=None if decoder.system is None else _as_utf8(decoder.system),
    )
    writing = replace(writing, stop=tuple(map(_as_utf8, writing.stop)))
    from glassformer.checkpoint.download_cache import find_model

    given = given_options(answer, writing, decoder, languages, tasks, embed=embed)
    check_ranges(given)
    _check_streams(input_and_output, decoder)
    if parallel and input_and_output.input is None and decoder.prompt is None:
        raise UsageError(f"--parallel {parallel} reads no stdin, which processes cannot share: expected --input FILE")
    path = find_model(path)
    kind = _task_of(path)
    if kind is not None:  # before the model is loaded, which may take a while
        check_taken(path, kind, given)
    model = compute.load(path, allow_pickle=allow_pickle, parallel=parallel)
    if is_follower():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # the first process prints
    check_taken(path, _kind_of(model), given)
    if tasks.task:
        model = model.with_task(tasks.task)
    if hasattr(model, "with_languages"):
        model = model.with_languages(languages.source_language, languages.target_language)
        model.check_languages()  # once, before any line
    with reporting_truncated(model, truncate=writing.truncate), computing_for_long():
        _use(model, given, input_and_output, answer, decoder)


def _check_streams(lines: LineOptions, decoder: DecoderOptions) -> None:
    check_files(lines.input, lines.output)
    if decoder.prompt is not None:
        if lines.input is not None:
            raise UsageError(f"--prompt with --input {lines.input}: expected one of them")
        if lines.output is not None:
            raise UsageError(f"--prompt with --output {lines.output}: use > {lines.output} instead of --output")
    else:
        lines.span()  # a wrong --part is refused before the model is loaded
        if lines.input is None:
            check_stdin()


def _task_of(path: Path) -> str | None:
    """Return the task of a model folder that Glassformer trained, from its `task.json`; None for any other model."""
    from glassformer.pipelines.pipeline_registry import TASK, read_about

    if not (path / TASK).is_file():
        return None
    return str(read_about(path)["task"])


def _kind_of(model: Any) -> str:
    """Return the key by which `check_taken` looks up the options that apply to a loaded pipeline.

    It is the task of the pipeline, or the kind of a pretrained model, such as "decoder".
    """
    return str(getattr(model, "task", None) or getattr(getattr(model, "model", None), "kind", ""))


def _use(model: Any, given: Given, lines: LineOptions, answers: AnswerOptions, decoder: DecoderOptions) -> None:
    """Use a loaded pipeline: answer --prompt, hold a conversation on a terminal, or answer the lines of the input."""
    from glassformer.pipelines.encoder_pipeline import EncoderPipeline, embed_lines
    from glassformer.pipelines.generator import Generator, as_messages
    from glassformer.pipelines.pipeline import LineRequest, Pipeline

    size = CHUNK if lines.output is None else FILE_CHUNK
    to_answers = partial(
        run_lines,
        on_bad=lines.on_bad,
        input=lines.input,
        output=None if is_follower() else lines.output,
        as_json=answers.json,
        quiet=lines.quiet or is_follower(),
        span=lines.span(),
        size=DECODER_CHUNK if isinstance(model, Generator) and model.batch_tokens is None else size,
    )
    if not isinstance(model, Pipeline):
        to_answers(model.run)
        return
    request = LineRequest(
        n_best=answers.n_best,
        with_scores=answers.scores or answers.json,
        generation=_generation_of(model, given),
        chat=decoder.chat or None,
        system=decoder.system,
    )
    generator: Any = model  # --prompt and --chat are refused earlier for other models
    is_chat = decoder.chat or (decoder.prompt is None and isinstance(model, Generator) and model.answers_messages)
    if is_chat:
        # An error in the template is raised once, before any line.
        generator.answer_to(as_messages("Hello", decoder.system))
    is_plain = request.n_best is None and not answers.scores and not answers.json

    def answer(texts: list[str]) -> list[str]:
        n_truncated = model.n_truncated
        try:
            if isinstance(model, EncoderPipeline) and given.get("embed"):
                found = embed_lines(model, texts)
            else:
                found = model.answer_lines(texts, request)
        except ValueError:
            model.n_truncated = n_truncated  # `run_lines` answers these texts again, without the bad ones
            raise
        return [as_line(one, answers) for one in found]

    if decoder.prompt is not None:
        if is_plain:
            messages = as_messages(decoder.prompt, decoder.system)
            prompt = generator.answer_to(messages) if is_chat else generator.read(decoder.prompt)
            _show(_write(generator, prompt, request))
        else:
            (found,) = generator.answer_texts([decoder.prompt], request)
            print(as_line(found, answers).replace("\n", "\\n"))
    elif is_chat and lines.input is None and sys.stdin.isatty() and is_plain:
        _converse(generator, request, quiet=lines.quiet)
    else:
        if lines.input is None and sys.stdin.isatty() and not lines.quiet:
            print("Type a line and press Enter. Ctrl-D ends.", file=sys.stderr)
        to_answers(answer)


def _generation_of(model: Any, given: Given) -> "GenerationConfig | None":
    base: GenerationConfig | None = getattr(model, "generation", None)
    return None if base is None else search_of(base, given)


def as_line(answer: "LineAnswer", options: AnswerOptions) -> str:
    """Format an answer as one line: plain text, JSON, or the alternatives and scores separated by tabs."""
    if options.json:
        return json.dumps(answer.record, ensure_ascii=False, allow_nan=False)
    if options.n_best is None and not options.scores:
        return answer.line
    texts = answer.texts if options.n_best is not None or not answer.scores else answer.texts[: len(answer.scores)]
    cells = []
    for place, text in enumerate(texts):
        cells.append(text.replace("\t", "\\t"))
        score = answer.scores[place] if place < len(answer.scores) else None
        if options.scores and score is not None:
            cells.append(f"{score:.4f}")
    return "\t".join(cells)


def _as_utf8(text: str) -> str:
    """Return a command-line argument, decoded as UTF-8 if the locale's encoding could not decode it."""
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f"the argument {text!r} is not valid UTF-8: expected text") from error


def _write(model: "Generator", prompt: list[int], request: "LineRequest") -> Iterator[str]:
    """Generate the continuation of a prompt, and return its pieces. A beam search gives one piece, the whole text."""
    if request.generation is not None and request.generation.num_beams > 1:
        return iter([model.candidates_after([prompt], request.generation)[0][0].text])
    return model.stream_after(prompt, request.generation)


def _show(pieces: Iterator[str]) -> str:
    """Print the pieces of a text as they arrive, and return the whole text."""
    text = ""
    for piece in pieces:
        print(piece, end="", flush=True)
        text += piece
    print()
    return text


def _converse(model: "Generator", request: "LineRequest", *, quiet: bool) -> None:
    if not quiet:
        print("Type a message and press Enter. An empty line ends the conversation.", file=sys.stderr)
    messages: list[dict[str, str]] = []
    if request.system is not None:
        messages.append({"role": "system", "content": request.system})
    while text := _ask():
        messages.append({"role": "user", "content": text})
        answer = _show(_write(model, model.answer_to(messages), request))
        messages.append({"role": "assistant", "content": answer})


def _ask() -> str:
    """Ask the user for a line and return it; "" at the end of stdin."""
    try:
        return input("> ")
    except EOFError:
        return ""
