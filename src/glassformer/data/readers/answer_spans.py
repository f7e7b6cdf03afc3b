"""Read extractive question answering data: SQuAD JSON (1.1 and 2.0), or JSONL, TSV and CSV records.

Every answer is compared with the context at its stated position. A mismatch is an error that names the record, because
training on a wrong span would go unnoticed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.data.readers.records import (
    BadRecordError,
    DuplicateKeyError,
    OnBad,
    Record,
    as_text,
    examples_of,
    kind_of,
    parse_json,
    read_records,
)
from glassformer.data.readers.text_files import check_file, read_text


class SpanQuestion(NamedTuple):
    """A question, the context that answers it, and the answers with their positions in the context."""

    question: str
    context: str
    answers: tuple[str, ...]
    """Acceptable answers. Empty if the context does not answer the question."""
    starts: tuple[int, ...]
    """Character position of each answer in the context."""
    where: str = ""
    """`file:line` of the record; for SQuAD, the place in the JSON and the question's id."""


@dataclass
class SpanReader:
    """Yields the questions in some files each time it is iterated over.

    A bad record raises an error if `on_bad` is "error". If it is "skip", the record is left out, and `skipped` counts
    the bad records of the last pass by problem.
    """

    paths: Sequence[Path]
    columns: tuple[str, str, str]
    """Names of the columns (or JSON keys) with the question, the context and the answers."""
    on_bad: OnBad = "error"
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for path in self.paths:
            check_file(path)
            if kind_of(path) == "text" and not _is_squad(path):
                raise ValueError(f"{path}: expected SQuAD .json, or .jsonl, .tsv or .csv, optionally with .gz")

    def __iter__(self) -> Iterator[SpanQuestion]:
        self.skipped.clear()
        for path in self.paths:
            records = _squad(path) if _is_squad(path) else read_records(path, self.columns)
            yield from examples_of(records, self._question, self.on_bad, self.skipped)

    def _question(self, record: Record) -> SpanQuestion:
        names = self.columns
        question, context = as_text(record.cells[0], names[0]), record.cells[1]
        as_text(context, names[1])  # not stripped: answer positions count from its first character
        answers, starts = _answers(record.cells[2], names[2])
        places = [_find(context, answer, start) for answer, start in zip(answers, starts, strict=True)]
        return SpanQuestion(question, context, tuple(answers), tuple(places), record.where)


def _answers(cell: Any, column: str) -> tuple[list[str], list[int | None]]:
    """Return the answers in a record's cell, and the start position of each; None where the cell states no position.

    The cell may be a text, a list of texts, a list of SQuAD's answer objects, or an object with the lists `text` and
    `answer_start`, as Hugging Face stores SQuAD.
    """
    if isinstance(cell, dict):
        texts, starts = cell.get("text"), cell.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(f"no answers under {column!r}: expected lists 'text' and 'answer_start' of one length")
        cell = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if isinstance(cell, str) and not cell.strip():
        raise ValueError(f"empty {column}: expected words of the context, or an empty list if unanswerable")
    answers: list[str] = []
    positions: list[int | None] = []
    for one in cell if isinstance(cell, list) else [cell]:
        text, start = (one.get("text"), one.get("answer_start")) if isinstance(one, dict) else (one, None)
        if start is not None and (not isinstance(start, int) or isinstance(start, bool)):
            raise ValueError(f"answer_start is {start!r}: expected a whole number")
        text = as_text(text, column) if start is None else text
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"no text under {column!r}")
        answers.append(text)
        positions.append(start)
    return answers, positions


def _find(context: str, answer: str, start: int | None) -> int:
    """Return the answer's position in the context, which is its first occurrence if `start` is None.

    Raises ValueError if the answer is not in the context, or not at `start`.
    """
    if start is None:
        place = context.find(answer)
        if place < 0:
            raise ValueError(f"the answer {answer[:60]!r} is not in its context: expected an exact quotation")
        return place
    if start < 0 or context[start : start + len(answer)] != answer:
        there = context[max(start, 0) : max(start, 0) + len(answer)][:60]
        raise ValueError(f"the answer {answer[:60]!r} is not at character {start} of its context: there is {there!r}")
    return start


def _is_squad(path: Path) -> bool:
    return path.name.removesuffix(".gz").lower().endswith(".json")


def _squad(path: Path) -> Iterator[Record]:
    """Yield the questions of a SQuAD file as records with the cells question, context and answers."""
    try:
        articles = parse_json(read_text(path))["data"]
    except BadRecordError:
        raise
    except DuplicateKeyError as error:
        raise BadRecordError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        where = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        raise BadRecordError(f"{where} is not SQuAD's JSON ({error}): expected an object with 'data'") from error
    for number, article in enumerate(_list(articles, f"{path}: data")):
        for place, paragraph in enumerate(_list(_get(article, "paragraphs"), f"{path}: data[{number}].paragraphs")):
            here = f"{path}: data[{number}].paragraphs[{place}]"
            for question in _list(_get(paragraph, "qas"), f"{here}.qas"):
                unanswerable = _get(question, "is_impossible") is True
                answers = [] if unanswerable else _get(question, "answers")
                problem = "" if unanswerable or answers else "no answers, and not is_impossible"
                cells = (_get(question, "question"), _get(paragraph, "context"), answers)
                yield Record(cells, problem, f"{here}: question {_get(question, 'id')}")


def _get(table: Any, key: str) -> Any:
    return table.get(key) if isinstance(table, dict) else None


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRecordError(f"{where} is no list: expected SQuAD's JSON")
    return value
