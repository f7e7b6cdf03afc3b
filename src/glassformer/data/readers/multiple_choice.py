"""Read multiple-choice questions from JSONL files. Errors name the file and line."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.data.readers.text_files import BadUtf8Error, bad_record, check_file, read_lines

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class MultipleChoice:
    """A question, its possible answers, and the index of the right one."""

    question: str
    choices: tuple[str, ...]
    answer: int


def read_multiple_choice(files: Sequence[Path]) -> Iterator[MultipleChoice]:
    """Yield the questions of JSONL files.

    Each line is an object with `question` (or `context`), `choices`, a list of at least two texts, and `answer`: the
    index of the right choice from 0, its letter (A is the first), or its text. Blank lines are skipped.
    """
    for file in files:
        check_file(file)
        for line in read_lines(file):
            if line.problem:
                raise BadUtf8Error(line.where)
            if line.text.strip():
                yield _parse(line.text, line.where)


def _parse(text: str, where: str) -> MultipleChoice:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_record(where, f"not JSON: {error}", "questions") from error
    if not isinstance(record, dict):
        raise bad_record(where, "expected a JSON object", "questions")
    question, choices = record.get("question", record.get("context")), record.get("choices")
    if not isinstance(question, str):
        raise bad_record(where, "'question' is missing: expected a text", "questions")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(one, str) and one for one in choices):
        raise bad_record(where, "'choices' is not a list of at least two texts", "questions")
    answer = _answer(record.get("answer"), choices)
    if answer is None:
        raise bad_record(
            where,
            f"answer={str(record.get('answer'))[:40]!r}: expected the index, letter or text of a choice",
            "questions",
        )
    return MultipleChoice(question, tuple(choices), answer)


def _answer(value: Any, choices: list[str]) -> int | None:
    """Return the index of the right choice, or None if `value` names none."""
    if isinstance(value, str):
        if value in choices:
            return choices.index(value)
        value = int(value) if re.fullmatch("[0-9]{1,6}", value) else LETTERS.find(value) if len(value) == 1 else -1
    return value if type(value) is int and 0 <= value < len(choices) else None
