"""Records of TSV, CSV or JSONL files, plain or gzip; a bad one names its file and line.

Each record of a table has as many cells as its header. CSV cells may be quoted, and hold line breaks then. TSV has no
quoting: a quote is an ordinary character, and no cell can hold a tab or a line break.

Files stream: memory stays flat however long they are.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from glassformer.data.readers.csv_rows import CsvRow, read_csv_rows
from glassformer.data.readers.text_files import BadRecordError as BadRecordError
from glassformer.data.readers.text_files import bad_record, check_file, read_lines

OnBad = Literal["error", "skip"]
TABLES = {".tsv": "\t", ".csv": ","}
Example = TypeVar("Example")


class Record(NamedTuple):
    """The values under the columns that were asked for, or what is wrong with the record; and where it stands."""

    cells: tuple[Any, ...]
    problem: str
    where: str


class Examples(list[Example]):
    """Examples in memory, and how many records were passed over, by what was wrong with them."""

    def __init__(self, examples: Iterable[Example] = (), skipped: Counter[str] | None = None):
        super().__init__(examples)
        self.skipped: Counter[str] = Counter(skipped)

    @classmethod
    def of(cls, reader: "RecordReader[Example]") -> "Examples[Example]":
        """All that a reader finds."""
        found = cls(reader)
        found.skipped.update(reader.skipped)
        return found


class MissingColumnError(BadRecordError):
    """A table without a column that is read."""

    def __init__(self, where: str, column: str, columns: Sequence[str], option: str = ""):
        found = ", ".join(cell[:40] for cell in columns[:20])
        super().__init__(
            f"{where}: no column {column!r} in the header ({found}): name yours with "
            f"{option or 'the option for it'}, or put a header line first"
        )
        self.where, self.column, self.columns = where, column, columns

    def naming(self, option: str) -> "MissingColumnError":
        """The same error with the option that names the column."""
        return MissingColumnError(self.where, self.column, self.columns, option)


@dataclass
class RecordReader(Generic[Example]):
    """Iterates over the examples of some files, as often as asked; `skipped` counts what was bad in the last pass."""

    paths: Sequence[Path]
    columns: Sequence[str]
    make: Callable[[Record], Example]
    """An example of a record; a ValueError says what is wrong with it."""
    on_bad: OnBad = "error"
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for path in self.paths:
            check_file(path)
            if kind_of(path) == "text":
                raise ValueError(
                    f"{path}: expected a table by its name: .tsv, .csv or .jsonl, .gz too. Rename it if it is one; "
                    "for texts alone there are the tasks language and masking"
                )

    def __iter__(self) -> Iterator[Example]:
        self.skipped.clear()
        for path in self.paths:
            yield from examples_of(read_records(path, self.columns), self.make, self.on_bad, self.skipped)


def examples_of(
    records: Iterable[Record], make: Callable[[Record], Example], on_bad: OnBad, skipped: Counter[str]
) -> Iterator[Example]:
    """The examples of some records; a bad one is an error that names its place, or is counted in `skipped`."""
    for record in records:
        problem = record.problem
        if not problem:
            try:
                yield make(record)
                continue
            except ValueError as error:
                problem = str(error)
        if on_bad == "error":
            raise bad_record(record.where, problem)
        skipped[problem] += 1


def kind_of(path: Path) -> Literal["text", "table", "jsonl"]:
    """How a file is laid out, by its name without .gz."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES:
        return "table"
    return "jsonl" if suffix in (".jsonl", ".ndjson") else "text"


def read_records(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """The records of a table or a JSONL file; the cells of a table are strings, those of JSONL any value."""
    return (_json_lines if kind_of(path) == "jsonl" else _table)(path, columns)


def as_text(cell: object, column: str) -> str:
    """A cell that must hold text."""
    if not isinstance(cell, str):
        raise ValueError(f"no text under {column!r}")
    if not cell.strip():
        raise ValueError(f"empty {column}")
    if has_lone_surrogate(cell):
        raise ValueError(lone_surrogate(column))
    return cell.strip()


def has_lone_surrogate(value: object) -> bool:
    """Whether a text holds half of a surrogate pair, which is no character; or a text inside a list or object does."""
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(map(has_lone_surrogate, value.values()))
    return isinstance(value, list) and any(map(has_lone_surrogate, value))


def lone_surrogate(column: str) -> str:
    """The problem of a cell that has a lone surrogate."""
    return f"half a surrogate pair under {column!r}: expected whole characters"


def _table(path: Path, wanted: Sequence[str]) -> Iterator[Record]:
    is_csv = Path(path.name.removesuffix(".gz")).suffix.lower() == ".csv"
    rows = read_csv_rows(read_lines(path, keep_ends=True)) if is_csv else _tsv_rows(path)
    header = next(rows, None)
    if header is None or header.problem:
        raise BadRecordError(f"{path}:1: {header.problem if header else 'the file is empty'}: expected a header")
    columns = header.cells
    for column in wanted:
        if column not in columns:
            raise MissingColumnError(f"{path}:1", column, columns)
        if columns.count(column) > 1:
            raise BadRecordError(f"{path}:1: {columns.count(column)} columns are named {column!r}: expected one")
    indices = [columns.index(column) for column in wanted]
    for cells, problem, where in rows:
        if not problem and len(cells) != len(columns):
            problem = f"{len(cells)} columns, expected {len(columns)}"
            if not is_csv and any(cell.startswith('"') for cell in cells):
                problem += " (TSV has no quoting; CSV has, for cells that hold tabs or line breaks)"
        yield Record((), problem, where) if problem else Record(tuple(cells[index] for index in indices), "", where)


def _tsv_rows(path: Path) -> Iterator[CsvRow]:
    for text, problem, where in read_lines(path):
        yield CsvRow(text.split("\t"), problem, where)


def _json_lines(path: Path, wanted: Sequence[str]) -> Iterator[Record]:
    for text, problem, where in read_lines(path):
        cells: tuple[Any, ...] = ()
        if not problem:
            cells, problem = _json_cells(text, wanted)
        yield Record(() if problem else cells, problem, where)


def _json_cells(text: str, wanted: Sequence[str]) -> tuple[tuple[Any, ...], str]:
    """The values under the wanted keys of a JSON object, and what is wrong with it."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError too where a number has thousands of digits
        return (), f"not JSON ({getattr(error, 'msg', error)})"
    if not isinstance(record, dict):
        return (), "not a JSON object"
    cells = tuple(record.get(column) for column in wanted)
    if "\\ud" in text.lower():  # only an escape can be half a pair
        for column, cell in zip(wanted, cells, strict=True):
            if has_lone_surrogate(cell):
                return (), lone_surrogate(column)
    return cells, ""
