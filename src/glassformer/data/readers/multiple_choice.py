"""Read multiple-choice questions from JSONL files. Errors name the file and line."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.base.checks import shown
from glassformer.data.readers.records import DuplicateKeyError, OnBad, parse_json
from glassformer.data.readers.text_files import bad_record, check_file, read_lines

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class MultipleChoice:
    """A question, its possible answers, and the index of the right one."""

    question: str
    choices: tuple[str, ...]
    answer: int


def read_multiple_choice(
    files: Sequence[Path], on_bad: OnBad = "error", skipped: Counter[str] | None = None
) -> Iterator[MultipleChoice]:
    """Yield the questions of JSONL files.

    A bad question raises an error that names its line, or with `on_bad="skip"` is counted in `skipped` by problem.

    Each line is an object with `question` (or `context`), `choices`, a list of at least two texts, and `answer`: the
    index of the right choice from 0, its letter (A is the first), or its text. Blank lines are skipped.
    """
    for file in files:
        check_file(file)
        for line in read_lines(file):
            if not line.text.strip():
                continue
            problem = line.problem
            if not problem:
                try:
                    yield _parse(line.text)
                    continue
                except ValueError as error:
                    problem = str(error)
            if on_bad == "error":
                raise bad_record(line.where, problem, "questions")
            if skipped is not None:
                skipped[problem] += 1


def _parse(text: str) -> MultipleChoice:
    try:
        record = parse_json(text)
    except DuplicateKeyError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError("expected a JSON object")
    question, choices = record.get("question", record.get("context")), record.get("choices")
    if not isinstance(question, str):
        raise ValueError("'question' is missing: expected a text")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(one, str) and one for one in choices):
        raise ValueError("'choices' is not a list of at least two texts")
    answer = _answer(record.get("answer"), choices)
    if answer is None:
        raise ValueError(f"answer={shown(record.get('answer'))}: expected the index, letter or text of a choice")
    return MultipleChoice(question, tuple(choices), answer)


def _answer(value: Any, choices: list[str]) -> int | None:
    """Return the index of the right choice, or None if `value` names none."""
    if isinstance(value, str):
        if value in choices:
            return choices.index(value)
        value = int(value) if re.fullmatch("[0-9]{1,6}", value) else LETTERS.find(value) if len(value) == 1 else -1
    return value if type(value) is int and 0 <= value < len(choices) else None
