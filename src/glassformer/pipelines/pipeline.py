"""What all pipelines share: they take one text or a list of texts, and answer the lines of `glassformer run`."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from glassformer.base.checks import shown

if TYPE_CHECKING:
    from glassformer.decoding import GenerationConfig, Written

ManyTexts = list[str] | tuple[str, ...]
"""A list of texts. Not `Sequence[str]`: a string is one of those too, and must not be read as its characters."""
Pair = tuple[str, str]
ManyPairs = list[Pair] | tuple[Pair, ...]
Input = tuple[str, str | None]
"""What an encoder reads at once: a text, or two."""
ManyInputs = ManyTexts | Sequence[Input] | list[str | Input] | list[Pair]
T = TypeVar("T")


def each_text(texts: object, answer: Callable[[list[str]], list[T]], name: str = "texts") -> T | list[T]:
    """Answer one string with one answer, and a list of strings with a list of answers."""
    if isinstance(texts, str):
        return answer([texts])[0]
    return answer(check_texts(texts, name))


def each_pair(pairs: object, answer: Callable[[list[Pair]], list[T]], name: str = "pairs") -> T | list[T]:
    """Answer one tuple of two strings with one answer, and a list of such pairs with a list of answers."""
    if _is_pair(pairs) and isinstance(pairs, tuple):
        return answer([pairs])[0]
    found = as_list(pairs, name, "a tuple of two strings or a list of such tuples")
    for place, pair in enumerate(found):
        if not _is_pair(pair):
            raise TypeError(f"{name}[{place}] is {shown(pair)}: expected a tuple of two strings")
    return answer([(first, second) for first, second in found])


def check_texts(texts: object, name: str = "texts") -> list[str]:
    """The strings of a list; a TypeError for anything else."""
    found = as_list(texts, name, "a string or a list of strings")
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{place}] is {shown(text)}: expected a string")
    return found


def check_inputs(inputs: object, name: str = "texts") -> list[Input]:
    """The inputs of a list, each a string or a tuple of two; a TypeError for anything else."""
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
    """One string; a TypeError for anything else."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {shown(text)}: expected a string{_decode_hint(text)}")
    return text


def as_list(values: object, name: str, expected: str) -> list[Any]:
    """The values of a list or another ordered collection; a TypeError for anything else."""
    # The order of a set is not the caller's, and the keys of a table are hardly what was meant.
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
    """The number of alternatives; None is one, or for labels all of them."""
    with_scores: bool = False
    """Whether scores are needed. They cost time where a text is written without a beam."""
    generation: "GenerationConfig | None" = None
    """The search for a text; None is the model's own."""
    chat: bool = False
    """Whether each line is a message to answer, rather than a text to continue."""
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
    """The score of each alternative, where there are scores."""


class Candidate(NamedTuple):
    """A text that a model wrote, and its score: log-probability / length ** length_penalty."""

    text: str
    score: float | None = None


def candidate_of(written: "Written", text: str, length_penalty: float = 1.0) -> Candidate:
    """A text with its score: the beam's, or computed from the log-probabilities where these were asked for."""
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
    """The answer to a line that texts were written for; none where the line is blank.

    `describe` gives the JSON fields of a text; the one named `key` is printed as the line.
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
    """The answer to a line that was turned into a vector."""
    numbers = [as_json_number(number) for number in vector]
    return LineAnswer(json.dumps(numbers), {"vector": numbers})


def as_json_number(value: float) -> float | None:
    """A number with six digits after the point; None for infinity and NaN, which JSON does not have."""
    return round(value, 6) if math.isfinite(value) else None


def answer_lines_with_text(
    lines: Sequence[str], blank: LineAnswer, answer: Callable[[list[str]], list[LineAnswer]]
) -> list[LineAnswer]:
    """The answers to the lines; a blank line gets `blank`."""
    answers = iter(answer([line for line in lines if line.strip()]))
    return [next(answers) if line.strip() else blank for line in lines]


class Pipeline(ABC):
    """A model that is ready to use on texts."""

    @abstractmethod
    def answer_lines(self, lines: Sequence[str], request: LineRequest) -> list[LineAnswer]:
        """One answer for each line, in their order."""

    @overload
    def run(self, lines: str) -> str: ...
    @overload
    def run(self, lines: ManyTexts) -> list[str]: ...
    def run(self, lines: str | ManyTexts) -> str | list[str]:
        """One line of answer for each line; one string gives one answer."""
        return each_text(lines, lambda several: self._run(several, LineRequest()), "lines")

    def _run(self, lines: list[str], request: LineRequest) -> list[str]:
        return [answer.line for answer in self.answer_lines(lines, request)]
