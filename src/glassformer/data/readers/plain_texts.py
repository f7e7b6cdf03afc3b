"""Read unlabeled texts: one per line, or a column of TSV, CSV or JSONL; plain or gzip.

A bad record raises an error that names `file:line`; with `on_bad="skip"` it is skipped and counted. Files are streamed,
so memory use does not grow with their size.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from glassformer.data.readers.records import OnBad, as_text, kind_of, read_records
from glassformer.data.readers.text_files import bad_record, check_file, read_lines


class PlainText(NamedTuple):
    """A text and the `file:line` where it was read."""

    text: str
    where: str = ""


@dataclass
class TextReader:
    """Yields the texts in some files each time it is iterated over.

    A bad record raises an error if `on_bad` is "error". If it is "skip", the record is left out, and `skipped` counts
    the bad records of the last pass by problem. Blank lines of text files are ignored and do not count as bad.
    """

    paths: Sequence[Path]
    column: str = "text"
    """Name of the text column in tables and JSONL."""
    on_bad: OnBad = "error"
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for path in self.paths:
            check_file(path)

    def __iter__(self) -> Iterator[PlainText]:
        self.skipped.clear()
        for path in self.paths:
            for found, problem in _lines(path) if kind_of(path) == "text" else _records(path, self.column):
                if not problem:
                    yield found
                elif self.on_bad == "error":
                    raise bad_record(found.where, problem)
                else:
                    self.skipped[problem] += 1


def _lines(path: Path) -> Iterator[tuple[PlainText, str]]:
    for text, problem, where in read_lines(path):
        if problem or text.strip():
            yield PlainText(text.strip(), where), problem


def _records(path: Path, column: str) -> Iterator[tuple[PlainText, str]]:
    for record in read_records(path, [column]):
        text, problem = "", record.problem
        if not problem:
            try:
                text = as_text(record.cells[0], column)
            except ValueError as error:
                problem = str(error)
        yield PlainText(text, record.where), problem
