"""`Pipeline`, the base class of all pipelines, with the checks of their inputs and the answers that they return."""

import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from glassformer.base.checks import shown

if TYPE_CHECKING:
    from glassformer.decoding import GeneratedText, GenerationConfig

_LOG = logging.getLogger(__name__)
ManyTexts = list[str] | tuple[str, ...]
"""A list of texts. Not `Sequence[str]`, because a string is a sequence of its characters."""
Pair = tuple[str, str]
ManyPairs = list[Pair] | tuple[Pair, ...]
Input = tuple[str, str | None]
"""An input of an encoder: a text and None, or a pair of texts."""
ManyInputs = ManyTexts | Sequence[Input] | list[str | Input] | list[Pair]
T = TypeVar("T")
ONE_OR_MORE = "a string or a list of strings"
"""The expected texts of a method that takes one or several, for its error message."""
WRITING_BATCH_TOKENS, READING_BATCH_TOKENS = 4096, 8192
"""Default of `Pipeline.batch_tokens` where texts are written, and where they are only read."""
GPU_BATCH_TOKENS = 16_384
"""The default of `load` on a GPU: with 4096, a beam of 4 divides 128 sentences into four batches."""


def each_text(texts: object, answer: Callable[[list[str]], list[T]], name: str = "texts") -> T | list[T]:
    """Apply `answer`, which turns a list of texts into a list of results, to one text or to a list of texts.

    One string gives one result, and a list gives a list of results. Raise TypeError if `texts` is neither a string nor
    a list of strings. `name` is what the error message calls the argument.
    """
    if isinstance(texts, str):
        return answer([texts])[0]
    return answer(check_texts(texts, name, ONE_OR_MORE))


def each_pair(pairs: object, answer: Callable[[list[Pair]], list[T]], name: str = "pairs") -> T | list[T]:
    """Apply `answer`, which turns a list of pairs into a list of results, to one pair or to a list of pairs.

    A pair is a tuple of two strings. One pair gives one result, and a list gives a list of results. Raise TypeError if
    `pairs` is neither a pair nor a list of pairs. `name` is what the error message calls the argument.
    """
    if _is_pair(pairs) and isinstance(pairs, tuple):
        return answer([pairs])[0]
    found = as_list(pairs, name, "a tuple of two strings or a list of such tuples")
    for place, pair in enumerate(found):
        if not _is_pair(pair):
            raise TypeError(f"{name}[{place}] is {shown(pair)}: expected a tuple of two strings")
    return answer([(first, second) for first, second in found])


def check_texts(texts: object, name: str = "texts", expected: str = "a list of strings") -> list[str]:
    """Return an ordered collection of strings as a list. Raise a TypeError for anything else, such as one string.

    `name` and `expected` are for the error message, as in `as_list`.
    """
    found = as_list(texts, name, expected)
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{place}] is {shown(text)}: expected a string")
    return found


def check_inputs(inputs: object, name: str = "texts") -> list[Input]:
    """Check a list of texts and pairs of texts, and return each as a tuple: (text, None) or (first, second).

    Raise a TypeError for anything else. `name` is what the error message calls the argument.
    """
    found: list[Input] = []
    for place, one in enumerate(as_list(inputs, name, "a string, or a list of strings or of tuples of two strings")):
        if isinstance(one, str):
            found.append((one, None))
        elif _is_pair(one) or (isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and one[1] is None):
            found.append((one[0], one[1]))
        else:
            raise TypeError(f"{name}[{place}] is {shown(one)}: expected a string, or a tuple of two strings")
    return found


def check_text(text: object, name: str = "text") -> str:
    """Return `text` if it is a string. Otherwise raise a TypeError, whose message calls the argument `name`."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {shown(text)}: expected a string{_decode_hint(text)}")
    return text


def as_list(values: object, name: str, expected: str) -> list[Any]:
    """Return the values of an ordered collection as a list. Raise a TypeError for anything else.

    Strings, bytes, sets and dicts are refused too. `name` and `expected` are for the error message: the name of the
    argument, and a description of what it must be.
    """
    # A set has no order, and iterating over a dict gives its keys, which is rarely meant.
    if isinstance(values, str | bytes | bytearray | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {shown(values)}: expected {expected}{_decode_hint(values)}")
    return list(values)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(one, str) for one in value)


def _decode_hint(value: object) -> str:
    return "; bytes become a string by .decode('utf-8')" if isinstance(value, bytes | bytearray) else ""


@dataclass(frozen=True, kw_only=True)
class LineRequest:
    """Options of `Pipeline.answer_lines`: which answers to return for each line, and how to generate them."""

    n_best: int | None = None
    """How many alternative answers to return for each line; None is one text, or all labels of a classifier."""
    with_scores: bool = False
    """Whether to return scores. A beam search has them anyway; otherwise computing them takes extra time."""
    generation: "GenerationConfig | None" = None
    """Generation settings; None uses those of the pipeline."""
    chat: bool | None = None
    """Whether each line is a message to answer instead of a text to continue; None leaves that to the model."""
    system: str | None = None
    """The system message of each conversation."""


class LineAnswer(NamedTuple):
    """The answer to one line of input, in the forms in which `glassformer run` prints it."""

    line: str
    """The answer as plain text, which `run` prints by default."""
    record: dict[str, Any]
    """The answer as a JSON object, which `run --json` prints."""
    texts: tuple[str, ...] = ()
    """The alternative answers, best first, for `run --n-best`."""
    scores: tuple[float | None, ...] = ()
    """The score of each of `texts`, if there are scores."""


class Candidate(NamedTuple):
    """A generated text and its score, log-probability / length ** length_penalty; None if it was not computed."""

    text: str
    score: float | None = None


def candidate_of(written: "GeneratedText", text: str, length_penalty: float = 1.0) -> Candidate:
    """Return `text`, the decoded tokens of `written`, with its score.

    The score is that of the beam search. Without a beam search it is computed from the tokens' log-probabilities; it is
    None if `written` has none.
    """
    score = written.score
    if score is None and written.log_probs:
        score = sum(written.log_probs) / len(written.log_probs) ** length_penalty
    return Candidate(text, score)


def answer_of(
    candidates: Sequence[Candidate],
    request: LineRequest,
    describe: Callable[[str], dict[str, Any]] = lambda text: {"text": text},
    key: str = "text",
) -> LineAnswer:
    """Make the answer to a line from `candidates`, the texts that were generated for it.

    `candidates` are in order, best first. If there are none, as for a blank line, the answer is empty. `describe` turns
    a generated text into a JSON object, whose field `key` is the answer as plain text.
    """
    entries = [describe(candidate.text) for candidate in candidates] or [describe("")]
    texts = tuple(entry[key] for entry in entries)
    for entry, candidate in zip(entries, candidates, strict=False):
        if candidate.score is not None:
            entry["score"] = as_json_number(candidate.score)
    record = dict(entries[0])
    if request.n_best is not None:
        record["n_best"] = entries if candidates else []
    scores = tuple(candidate.score for candidate in candidates)
    return LineAnswer(texts[0], record, texts, scores)


def vector_answer(vector: list[float]) -> LineAnswer:
    """Return the answer to a line that was turned into a vector, which is printed as a JSON list."""
    numbers = [as_json_number(number) for number in vector]
    return LineAnswer(json.dumps(numbers), {"vector": numbers})


def as_json_number(value: float) -> float | None:
    """Return a number rounded to six decimal places; None for infinity and NaN, which JSON does not have."""
    return round(value, 6) if math.isfinite(value) else None


def answer_lines_with_text(
    lines: Sequence[str], blank: LineAnswer, answer: Callable[[list[str]], list[LineAnswer]]
) -> list[LineAnswer]:
    """Call `answer` with the lines that are not blank, and return the answers to all lines in order.

    The answer to a blank line is `blank`. Raise TypeError if `lines` is not a list of strings.
    """
    lines = check_texts(lines, "lines")
    answers = iter(answer([line for line in lines if line.strip()]))
    return [next(answers) if line.strip() else blank for line in lines]


class InputTooLongError(ValueError):
    """An input is longer than the model reads.

    Args:
        reason: What was wrong and what was expected.
        hint: How the caller can have the input cut; empty if it cannot.
    """

    def __init__(self, reason: str, hint: str = ""):
        super().__init__(f"{reason}; {hint}" if hint else reason)
        self.reason = reason


class Pipeline(ABC):
    """A model with its tokenizer, ready to use on texts: the base class of all pipelines."""

    truncate: bool = False
    """Whether an input that is longer than the model's limit is cut. Otherwise a model that writes text raises a
    ValueError, and an encoder cuts the input and logs a warning."""
    refuses_long: bool = False
    """Whether an encoder, too, raises an InputTooLongError. A server sets it: its clients see no warnings."""
    batch_tokens: int | None = None
    """The most padded input tokens of a batch, counted once per beam or sample. None is WRITING_BATCH_TOKENS where
    texts are written, and READING_BATCH_TOKENS where they are only read."""
    n_truncated: int = 0
    """How many inputs have been cut so far."""
    writer: "Callable[..., list[list[GeneratedText]]] | None" = None
    """Generates texts in place of `decoding.generate`, with its arguments; a server sets its batching engine here."""

    def write_tokens(
        self, inputs: "Sequence[list[int]]", config: "GenerationConfig", **options: Any
    ) -> "list[list[GeneratedText]]":
        """Generate texts for tokenized inputs with `writer`, or with `decoding.generate`, which takes `options`."""
        from glassformer.decoding import generate
        from glassformer.runtime.shared_work import divide_work

        model: Any = self.model  # type: ignore[attr-defined]

        def write(some: "Sequence[list[int]]") -> "list[list[GeneratedText]]":
            return (self.writer or generate)(model, some, config, **options)

        # The random numbers of a text depend on its place among all texts.
        return write(inputs) if config.do_sample else divide_work(inputs, write)

    def fit_inputs(
        self, inputs: Sequence[list[int]], limit: int | None, cut: Callable[[list[int]], list[int]]
    ) -> list[list[int]]:
        """Return tokenized inputs that the model can read: those of more than `limit` tokens are passed to `cut`.

        They are counted in `n_truncated`. Without `truncate`, the first of them raises a ValueError instead.
        """
        if limit is None:
            return list(inputs)
        long = [index for index, tokens in enumerate(inputs) if len(tokens) > limit]
        if long and not self.truncate:
            name = "the input" if len(inputs) == 1 else f"input {long[0] + 1} of {len(inputs)}"
            raise InputTooLongError(
                f"{name} has {len(inputs[long[0]])} tokens: expected at most {limit}, the most that the model reads",
                "--truncate (in Python truncate=True) cuts what is longer",
            )
        self.n_truncated += len(long)
        return [cut(tokens) if len(tokens) > limit else tokens for tokens in inputs]

    def truncation_note(self) -> str:
        """Return a sentence that says how many inputs were cut; "" if there were none."""
        count = f"{self.n_truncated:,} inputs were" if self.n_truncated != 1 else "1 input was"
        return f"{count} longer than the model reads, and cut to fit" if self.n_truncated else ""

    def count_truncated(self, n_cut: int, n_inputs: int, limit: int | None) -> None:
        """Add to `n_truncated` the number of inputs that an encoder cut. Without `truncate`, also log a warning.

        With `refuses_long`, raise an InputTooLongError instead. `limit` is the most tokens that the model reads.
        """
        if n_cut and self.refuses_long:
            name = "the input is" if n_inputs == 1 else f"{n_cut} of {n_inputs} inputs are"
            raise InputTooLongError(f"{name} too long: expected at most {limit} tokens, the most that the model reads")
        self.n_truncated += n_cut
        if n_cut and not self.truncate:
            _LOG.warning("%d of %d inputs are too long for the model and were cut", n_cut, n_inputs)

    @abstractmethod
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return one answer for each line, in the order of the lines. What an answer is depends on the subclass.

        Raise TypeError if `lines` is not a list of strings, such as one string.
        """

    @overload
    def run(self, lines: str) -> str: ...
    @overload
    def run(self, lines: ManyTexts) -> list[str]: ...
    def run(self, lines: str | ManyTexts) -> str | list[str]:
        """Return the plain-text answer to each line. One string gives one string, a list gives a list."""
        return each_text(lines, lambda several: self._run(several, LineRequest()), "lines")

    def _run(self, lines: list[str], request: LineRequest) -> list[str]:
        return [answer.line for answer in self.answer_lines(lines, request)]
