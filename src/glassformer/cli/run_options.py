"""The options of `glassformer run`, their ranges, and which kinds of models take them. Imports no torch."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.base.fields import MAX_THREADS
from glassformer.cli.flag_parser import UsageError
from glassformer.cli.part_option import read_part
from glassformer.pipelines.pipeline_registry import DECODER_OPTIONS, PIPELINES, SEQ2SEQ_OPTIONS, PipelineEntry

if TYPE_CHECKING:
    from glassformer.data.readers.text_files import Span
    from glassformer.decoding import GenerationConfig

MAX_BATCH_TOKENS = 1 << 24


def check_threads(threads: int) -> None:
    """Raise a UsageError if --threads is out of range. It does not import torch."""
    if not 0 <= threads <= MAX_THREADS:
        raise UsageError(f"--threads {threads}: expected 0 to {MAX_THREADS:,}")


def set_threads(threads: int) -> None:
    """Let torch compute with this number of CPU threads; 0 changes nothing."""
    check_threads(threads)
    if threads:
        import torch

        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """Input and output."""

    input: Path | None = None
    """Read the lines of this file instead of stdin."""
    output: Path | None = None
    """Write the answers to this new file instead of stdout. It appears when all lines are answered."""
    on_bad: Literal["error", "skip"] = "skip"
    """Report a line that the model cannot read, write an empty line and continue (skip), or stop at it (error)."""
    part: str = ""
    """Answer part I of N of the --input file only, such as 2/8, for array jobs. The outputs of all parts, one after the
    other, are those of the whole file."""
    quiet: bool = False
    """Show no progress bar and no hints. Errors are still shown."""

    def span(self) -> "Span | None":
        """Return the lines of --input that --part selects; None for all."""
        if not self.part:
            return None
        from glassformer.data.readers.file_parts import part_of_lines

        index, count = read_part(self.part)
        if self.input is None or not self.input.is_file():
            raise UsageError(
                f"--part {self.part} without an --input file: expected --input FILE, which it is a part of"
            )
        return part_of_lines(self.input, index, count)


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How to compute."""

    device: str = "auto"
    """Device to compute on, such as cpu or cuda; auto is a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Numbers to compute with; auto is float32, or on a GPU the bfloat16 or float16 in which the file is stored."""
    quantize: Literal["none", "int8", "int4"] = "none"
    """Compute with 8-bit weights (int8) on a CPU: several times as fast, with nearly the same results. 4-bit weights
    (int4) take half the memory of int8 and are less exact. none keeps a GGUF file as it is stored."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the decoding steps of a model that generates text. This takes half a minute or more for each batch shape
    and pays off for thousands of lines. auto does not compile."""
    threads: int = 0
    """Threads to compute with on a CPU; 0 is one per core."""
    batch_tokens: int | None = None
    """The most tokens of a batch, padding included, counted once per beam or sample. More are faster on large machines
    and take more memory. (default: 16384 on a GPU; on a CPU 4096 where texts are written, 8192 where they are only
    read)"""

    def load(self, path: Path | str, **options: Any) -> Any:
        """Load the pipeline of a model with these options."""
        check_threads(self.threads)
        if self.quantize != "none" and self.dtype != "auto":
            raise UsageError(f"--quantize {self.quantize} with --dtype {self.dtype}: expected one of them")
        if self.batch_tokens is not None and not 1 <= self.batch_tokens <= MAX_BATCH_TOKENS:
            raise UsageError(f"--batch-tokens {self.batch_tokens}: expected 1 to {MAX_BATCH_TOKENS:,}")
        from glassformer.pipelines.load import load

        set_threads(self.threads)
        return load(
            path,
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            compile=self.compile,
            batch_tokens=self.batch_tokens,
            **options,
        )


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Output for each line. Several values of one line are separated by tabs."""

    json: bool = False
    """Print one JSON object per line: text, scores, labels with probabilities, entities with places, vectors."""
    n_best: int | None = None
    """Print the N best texts of a beam search, N sampled texts, the N most likely labels, or the N most likely ways to
    fill in the blanks."""
    scores: bool = False
    """Print the mean log-probability of each text, the probability of each label or of the words in the blanks, or the
    score of a found answer."""


@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """For models that write text: translators, summarizers, language models."""

    beam: int | None = None
    """Beam width: how many partial texts the search keeps at each step. 1 is greedy search, which is faster. (default:
    the model's own)"""
    max_new_tokens: int | None = None
    """The most tokens to generate for a line. (default: the model's own, usually 256)"""
    temperature: float | None = None
    """0 takes the most likely token. More than 0 samples at random; 1 uses the model's own probabilities. (default:
    the model's own, usually 0)"""
    top_k: int | None = None
    """Sample only from the N most likely tokens; 0 is all. Needs a --temperature above 0. (default: 0)"""
    top_p: float | None = None
    """Sample only from the most likely tokens whose probabilities add up to this. Needs a --temperature above 0.
    (default: 1, all tokens)"""
    min_p: float | None = None
    """Sample only from tokens that are at least this times as probable as the best one. Needs a --temperature above 0.
    (default: 0, all tokens)"""
    seed: int | None = None
    """Seed of the random numbers: the same seed gives the same text. Needs a --temperature above 0. (default: 0)"""
    repetition_penalty: float | None = None
    """More than 1 makes tokens that were already written less likely. (default: 1)"""
    speculate: int | None = None
    """Propose up to N tokens from an earlier place in the text and verify them in one step. The text does not change;
    it is faster where texts repeat parts of their input. Needs a beam of 1. (default: 0, off)"""
    stop: tuple[str, ...] = ()
    """Stop generating where one of these texts appears. Needs a beam of 1."""
    truncate: bool = False
    """Read only the beginning of a text that is longer than the model's limit, and report at the end how many were
    cut. Without it, such a line is an error."""


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """For models that continue a text or answer a message."""

    prompt: str | None = None
    """Continue this text instead of reading lines, and show the result while it is generated."""
    chat: bool = False
    """Answer each line as a message instead of continuing it, as models of train chat and train preference always do.
    On a terminal, hold a conversation."""
    system: str | None = None
    """The system message before each conversation. Needs --chat."""


@dataclass(frozen=True, kw_only=True)
class LanguageOptions:
    """For pretrained translators of many languages: mBART, M2M100, NLLB."""

    source_language: str = ""
    """Language of the input: a code of the model, such as eng_Latn, or its first part if that is unique. (default: the
    tokenizer's)"""
    target_language: str = ""
    """Language of the translations, a code likewise. (default: the one in the model's files; required if they have
    none)"""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """For pretrained encoder-decoders whose files have settings for several tasks: T5, BART."""

    task: str = ""
    """A task of the model, such as summarization or translation_en_to_de: its prefix is put before each line, and its
    generation settings are used. info lists the tasks. (default: none)"""


WRITING = tuple(field.name for field in fields(WritingOptions) if field.name != "stop")  # not of denoising models
DECODING = tuple(field.name for field in fields(DecoderOptions))
LANGUAGES = tuple(field.name for field in fields(LanguageOptions))
TASKS = tuple(field.name for field in fields(TaskOptions))
OPTION_GROUPS = {"writing": WRITING, "decoding": DECODING, "languages": LANGUAGES, "tasks": TASKS}
"""The options in each of the groups that `PipelineEntry.takes` may name."""
EXTERNAL_MODELS = {
    "encoder_decoder": PipelineEntry("", "an encoder-decoder", (*SEQ2SEQ_OPTIONS, "languages", "tasks")),
    "decoder": PipelineEntry("", "a decoder", DECODER_OPTIONS),
    "encoder": PipelineEntry("", "an encoder that turns texts into vectors", ("embed",)),
}
"""Which options pretrained models take, by the kind of model."""

Given = dict[str, Any]
"""Options with their values that the user gave and that only some models take, by field name."""


def flag_of(name: str) -> str:
    """Return the command-line flag of a field, such as "--n-best" for "n_best"."""
    return f"--{name.replace('_', '-')}"


def given_options(*groups: Any, **others: bool) -> Given:
    """Return the options that the user changed from their defaults, to check whether the model supports them.

    `groups` are dataclasses of options, and `others` are boolean options that are off by default. `json` is left out,
    because every model supports it.
    """
    found = {
        field.name: getattr(group, field.name)
        for group in groups
        for field in fields(group)
        if getattr(group, field.name) != field.default and field.name != "json"  # every model takes --json
    }
    return found | {name: value for name, value in others.items() if value}


def check_ranges(given: Given) -> None:
    """Raise a UsageError for a value out of range, or for options that contradict each other whatever the model."""
    for name, value in given.items():
        if name in RANGES:
            is_right, expected = RANGES[name]
            if not is_right(value):
                raise UsageError(f"{flag_of(name)} {value:g}: expected {expected}")
    if "" in given.get("stop", ()):
        raise UsageError("--stop '': expected at least one character")
    n_best, beam, temperature = given.get("n_best"), given.get("beam"), given.get("temperature")
    if beam is not None and beam > 1:
        if temperature:
            raise UsageError(
                f"--temperature {temperature:g} --beam {beam}: expected one of them; a beam search draws nothing"
            )
        if "stop" in given:
            raise UsageError(f"--stop with --beam {beam}: expected --beam 1, or no --stop")
    if n_best is not None and beam is not None and n_best > beam and not temperature:
        raise UsageError(
            f"--n-best {n_best} --beam {beam}: expected --beam {n_best} or more, or a --temperature above 0"
        )
    if "system" in given and "chat" not in given:
        raise UsageError("--system has no effect without --chat: add --chat, or leave it out")
    if temperature == 0:
        _need_temperature(given)


def check_taken(path: Path, kind: str, given: Given) -> None:
    """Raise a UsageError for an option that has no effect on the model at `path`.

    `kind` is the task of the model, or the kind of a pretrained model, such as "decoder".
    """
    entry = PIPELINES.get(kind) or EXTERNAL_MODELS.get(kind)
    if entry is None:
        return
    name, taken = entry.called, [name for group in entry.takes for name in OPTION_GROUPS.get(group, (group,))]
    wrong = [option for option in given if option not in taken]
    if wrong:
        flags = ", ".join(map(flag_of, taken))
        raise UsageError(f"{flag_of(wrong[0])} has no effect: {path} is {name}, which takes {flags}")
    if given.get("embed") and len(given) > 1:
        other = next(option for option in given if option != "embed")
        raise UsageError(f"{flag_of(other)} has no effect with --embed: leave one of them out")


@contextmanager
def reporting_truncated(pipeline: Any, *, truncate: bool) -> Iterator[None]:
    """Context manager that reports on stderr, when the block ends, how many inputs the pipeline cut in it.

    `truncate` is the value of --truncate. An encoder cuts without it, so its logged warnings are turned off.
    """
    pipeline.truncate = truncate or not is_writer(pipeline)
    pipeline.n_truncated = 0
    try:
        yield
    finally:
        if pipeline.n_truncated:
            print(f"glassformer: {pipeline.truncation_note()}", file=sys.stderr)


def is_writer(pipeline: Any) -> bool:
    """Return whether a pipeline generates text: it then refuses inputs that are too long, unless it may cut them."""
    return hasattr(pipeline, "generation")


def search_of(base: "GenerationConfig", given: Given) -> "GenerationConfig":
    """Return `base`, the model's generation settings, changed by the given options."""
    changes: Given = {name: given[name] for name in ("max_new_tokens", "repetition_penalty", "seed") if name in given}
    if "max_new_tokens" in given:
        changes["min_new_tokens"] = min(base.min_new_tokens, given["max_new_tokens"])
    temperature, n_best = given.get("temperature"), given.get("n_best") or 1
    samples = base.do_sample if temperature is None else temperature > 0
    if not samples:
        _need_temperature(given)
        beams = given.get("beam") or max(base.num_beams, n_best)
        changes |= {"do_sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    else:
        beams = 1
        changes |= {name: given[name] for name in ("top_k", "top_p", "min_p") if name in given}
        changes |= {"do_sample": True, "temperature": temperature or base.temperature}
    if beams > 1:
        changes["eos_token_id"] = ()
    if "speculate" in given:
        if beams > 1 and given["speculate"]:
            raise UsageError(f"--speculate with a beam of {beams}: expected --beam 1, or no --speculate")
        changes["prompt_lookup_num_tokens"] = given["speculate"]
    if beams != base.num_beams:
        changes |= {"num_beam_groups": 1, "diversity_penalty": 0.0}
    if "stop" in given:
        if beams > 1:
            raise UsageError(f"--stop with a beam of {beams}: expected --beam 1, or no --stop")
        changes["stop_strings"] = given["stop"]
    return replace(base, num_beams=beams, num_return_sequences=n_best, **changes)


def _need_temperature(given: Given) -> None:
    for name in ("top_k", "top_p", "min_p", "seed"):
        if name in given:
            raise UsageError(
                f"{flag_of(name)} {given[name]:g} has no effect at --temperature 0, where nothing is drawn at random: "
                "add --temperature 1, or leave it out"
            )


def _whole(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: low <= value <= high), f"{low} to {high:,}"


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "beam": _whole(1, 256),
    "n_best": _whole(1, 256),
    "max_new_tokens": _whole(1, 65536),
    "speculate": _whole(0, 64),
    "top_k": (lambda value: 0 <= value < 2**31, "0 or more"),
    "temperature": (lambda value: 0 <= value < math.inf, "0 or more"),  # NaN is in no range
    "top_p": (lambda value: 0 < value <= 1, "more than 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "0 to 1"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "more than 0; 1 changes nothing"),
}
