"""The base class of all pipelines: one text or a list of texts in, and the answers that `glassformer run` prints."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from glassformer.base.checks import shown

if TYPE_CHECKING:
    from glassformer.decoding import GeneratedText, GenerationConfig

ManyTexts = list[str] | tuple[str, ...]
"""A list of texts. Not `Sequence[str]`, because a string is a sequence of its characters."""
Pair = tuple[str, str]
ManyPairs = list[Pair] | tuple[Pair, ...]
Input = tuple[str, str | None]
"""An input of an encoder: one text, or two."""
ManyInputs = ManyTexts | Sequence[Input] | list[str | Input] | list[Pair]
T = TypeVar("T")


def each_text(texts: object, answer: Callable[[list[str]], list[T]], name: str = "texts") -> T | list[T]:
    """Return one answer for a string, and a list of answers for a list of strings."""
    if isinstance(texts, str):
        return answer([texts])[0]
    return answer(check_texts(texts, name))


def each_pair(pairs: object, answer: Callable[[list[Pair]], list[T]], name: str = "pairs") -> T | list[T]:
    """Return one answer for a tuple of two strings, and a list of answers for a list of such pairs."""
    if _is_pair(pairs) and isinstance(pairs, tuple):
        return answer([pairs])[0]
    found = as_list(pairs, name, "a tuple of two strings or a list of such tuples")
    for place, pair in enumerate(found):
        if not _is_pair(pair):
            raise TypeError(f"{name}[{place}] is {shown(pair)}: expected a tuple of two strings")
    return answer([(first, second) for first, second in found])


def check_texts(texts: object, name: str = "texts") -> list[str]:
    """Return the strings of a list. Raise a TypeError for anything else."""
    found = as_list(texts, name, "a string or a list of strings")
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{place}] is {shown(text)}: expected a string")
    return found


def check_inputs(inputs: object, name: str = "texts") -> list[Input]:
    """Return the inputs of a list, each a string or a tuple of two. Raise a TypeError for anything else."""
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
    """Return the string. Raise a TypeError for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {shown(text)}: expected a string{_decode_hint(text)}")
    return text


def as_list(values: object, name: str, expected: str) -> list[Any]:
    """Return the values of a list or another ordered collection. Raise a TypeError for anything else."""
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
    """Options of `answer_lines`."""

    n_best: int | None = None
    """Number of alternatives; None is one, or all for labels."""
    with_scores: bool = False
    """Whether scores are needed. Without a beam search, computing them takes extra time."""
    generation: "GenerationConfig | None" = None
    """Generation settings; None uses those of the model."""
    chat: bool = False
    """Whether each line is a message to answer instead of a text to continue."""
    system: str | None = None
    """The system message of each conversation."""


class LineAnswer(NamedTuple):
    """The answer to one line, as `glassformer run` prints it."""

    line: str
    """The answer as one line of text."""
    record: dict[str, Any]
    """The answer as a JSON object."""
    texts: tuple[str, ...] = ()
    """The alternatives, best first."""
    scores: tuple[float | None, ...] = ()
    """The score of each alternative, if there are scores."""


class Candidate(NamedTuple):
    """A generated text and its score: log-probability / length ** length_penalty."""

    text: str
    score: float | None = None


def candidate_of(written: "GeneratedText", text: str, length_penalty: float = 1.0) -> Candidate:
    """Return a text with its score: that of the beam search, or computed from the log-probabilities."""
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
    """Return the answer to a line from its generated texts. A blank line has no texts.

    `describe` returns the JSON fields of a text. The field named `key` is printed as the line.
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
    """Return the answer to a line that was turned into a vector."""
    numbers = [as_json_number(number) for number in vector]
    return LineAnswer(json.dumps(numbers), {"vector": numbers})


def as_json_number(value: float) -> float | None:
    """Return a number rounded to six digits; None for infinity and NaN, which JSON does not have."""
    return round(value, 6) if math.isfinite(value) else None


def answer_lines_with_text(
    lines: Sequence[str], blank: LineAnswer, answer: Callable[[list[str]], list[LineAnswer]]
) -> list[LineAnswer]:
    """Return the answers to the lines. A blank line gets `blank`."""
    answers = iter(answer([line for line in lines if line.strip()]))
    return [next(answers) if line.strip() else blank for line in lines]


class Pipeline(ABC):
    """A model with its tokenizer, ready to use on texts."""

    @abstractmethod
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """Return one answer for each line, in their order."""

    @overload
    def run(self, lines: str) -> str: ...
    @overload
    def run(self, lines: ManyTexts) -> list[str]: ...
    def run(self, lines: str | ManyTexts) -> str | list[str]:
        """Return one line of output for each line of input. One string gives one string."""
        return each_text(lines, lambda several: self._run(several, LineRequest()), "lines")

    def _run(self, lines: list[str], request: LineRequest) -> list[str]:
        return [answer.line for answer in self.answer_lines(lines, request)]
