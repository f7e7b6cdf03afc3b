"""Read programming problems with tests in the format of MBPP (Austin et al. 2021)."""

from pathlib import Path

from glassformer.data.readers.records import Record, RecordReader, as_text
from glassformer.metrics.pass_at_k import Problem


def read_problems(path: Path) -> list[Problem]:
    """Return the problems of a .jsonl file.

    Its keys are `text` or `prompt`, `test_list`, and optionally `test_setup_code`.
    """
    problems = list(RecordReader([path], ["text", "prompt", "test_list", "test_setup_code"], _problem))
    if not problems:
        raise ValueError(f"{path} holds no problems: expected at least one")
    return problems


def _problem(record: Record) -> Problem:
    text, prompt, tests, setup = record.cells
    if not isinstance(tests, list) or not tests or not all(isinstance(test, str) for test in tests):
        raise ValueError("no tests under 'test_list': expected a list of lines of Python")
    if not isinstance(setup, str | None):
        raise ValueError("no text under 'test_setup_code'")
    return Problem(as_text(prompt if text is None else text, "text"), tuple(tests), setup or "", record.where)
