"""Read records of TSV, CSV or JSONL files, plain or gzip. Errors name the file and line.

Every record of a table has as many cells as the header. CSV cells may be quoted and then contain line breaks. TSV has
no quoting: a quote is an ordinary character, and no cell contains a tab or a line break. Files are streamed, so memory
use does not grow with their size.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from glassformer.base.plurals import counted
from glassformer.data.readers.csv_rows import CsvRow, read_csv_rows
from glassformer.data.readers.text_files import BadRecordError as BadRecordError
from glassformer.data.readers.text_files import Span, bad_record, check_file, read_lines

OnBad = Literal["error", "skip"]
TABLES = {".tsv": "\t", ".csv": ","}
Example = TypeVar("Example")


class Record(NamedTuple):
    """One record of a data file: the values of the requested columns, its problem ("" if none), and its `file:line`.

    If there is a problem, `cells` is empty.
    """

    cells: tuple[Any, ...]
    problem: str
    where: str


class Examples(list[Example]):
    """A list of examples, with the number of records that were skipped while reading them, by problem."""

    def __init__(self, examples: Iterable[Example] = (), skipped: Counter[str] | None = None):
        super().__init__(examples)
        self.skipped: Counter[str] = Counter(skipped)

    @classmethod
    def of(cls, reader: Iterable[Example]) -> "Examples[Example]":
        """Read all examples of a reader into memory, and copy its counts of skipped records, if it has `skipped`."""
        found = cls(reader)
        found.skipped.update(getattr(reader, "skipped", {}))
        return found


class MissingColumnError(BadRecordError):
    """A required column is missing from a table. `columns` are those in its header.

    `option` is the command-line option with which users name the column, for the message.
    """

    def __init__(self, where: str, column: str, columns: Sequence[str], option: str = ""):
        found = ", ".join(cell[:40] for cell in columns[:20])
        super().__init__(
            f"{where}: no column {column!r} in the header ({found}): name yours with "
            f"{option or 'the option for it'}, or put a header line first"
        )
        self.where, self.column, self.columns = where, column, columns

    def naming(self, option: str) -> "MissingColumnError":
        """Return a copy of this error whose message names `option`, the command-line option that sets the column."""
        return MissingColumnError(self.where, self.column, self.columns, option)


@dataclass
class RecordReader(Generic[Example]):
    """Yields the examples in some TSV, CSV or JSONL files each time it is iterated over.

    A bad record raises an error if `on_bad` is "error". If it is "skip", the record is left out, and `skipped` counts
    the bad records of the last pass by problem.
    """

    paths: Sequence[Path]
    columns: Sequence[str]
    make: Callable[[Record], Example]
    """Makes an example from a record, or raises a ValueError that says what is wrong with the record."""
    on_bad: OnBad = "error"
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for path in self.paths:
            check_file(path)
            if kind_of(path) == "text":
                raise ValueError(
                    f"{path}: expected .tsv, .csv or .jsonl, optionally with .gz. Rename the file if it is one; "
                    "for unlabeled text use the tasks language or masking"
                )

    def __iter__(self) -> Iterator[Example]:
        self.skipped.clear()
        for path in self.paths:
            yield from examples_of(read_records(path, self.columns), self.make, self.on_bad, self.skipped)


def examples_of(
    records: Iterable[Record], make: Callable[[Record], Example], on_bad: OnBad, skipped: Counter[str]
) -> Iterator[Example]:
    """Yield the examples that `make` makes from the records.

    A bad record raises an error that names its location, or with `on_bad="skip"` is counted in `skipped` by problem.
    """
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
    """Return a file's format by its suffix before .gz: "table" (.tsv, .csv), "jsonl" (.jsonl, .ndjson), else "text"."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES:
        return "table"
    return "jsonl" if suffix in (".jsonl", ".ndjson") else "text"


def read_records(path: Path, columns: Sequence[str], span: Span | None = None) -> Iterator[Record]:
    """Yield the records of a TSV, CSV or JSONL file, each with the values of these columns as its cells.

    The cells of tables are strings. In JSONL, cells may have any JSON type, and a missing key gives None. With `span`,
    only its lines are read, and the header of a table; a CSV file, whose cells may contain line breaks, has no spans.
    """
    return (_json_lines if kind_of(path) == "jsonl" else _table)(path, columns, span)


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice, of which Python's json would silently use the last value."""


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises DuplicateKeyError if an object in it has a key twice; ValueError or RecursionError if the text is not JSON.
    """
    return _JSON.decode(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, count),) = Counter(key for key, _ in pairs).most_common(1)
        times = "twice" if count == 2 else f"{count:,} times"
        raise DuplicateKeyError(f"the key {key[:40]!r} occurs {times} in an object: expected once")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_unique_keys)


def as_text(cell: object, column: str) -> str:
    """Return the text of a cell without white space around it.

    Raises ValueError if the cell is not a string, is blank, or has a lone surrogate. `column` names the cell's column
    in the error.
    """
    if not isinstance(cell, str):
        raise ValueError(f"no text under {column!r}")
    if not cell.strip():
        raise ValueError(f"empty {column}")
    if has_lone_surrogate(cell):
        raise ValueError(lone_surrogate(column))
    return cell.strip()


def has_lone_surrogate(value: object) -> bool:
    """Return whether a JSON value is or contains a string with a lone surrogate, which UTF-8 cannot encode."""
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return any(map(has_lone_surrogate, value.values()))
    return isinstance(value, list) and any(map(has_lone_surrogate, value))


def lone_surrogate(column: str) -> str:
    """Return the text of the problem that a cell of this column has a lone surrogate, for errors and counts."""
    return f"half a surrogate pair under {column!r}: expected whole characters"


def is_csv_file(path: Path) -> bool:
    """Return whether a file is CSV by its suffix before .gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lower() == ".csv"


def _table(path: Path, wanted: Sequence[str], span: Span | None) -> Iterator[Record]:
    is_csv = is_csv_file(path)
    rows = read_csv_rows(read_lines(path, keep_ends=True)) if is_csv else _tsv_rows(path, span)
    header = next(rows if span is None or not span.begin else _tsv_rows(path, None), None)
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
            problem = f"{counted(len(cells), 'columns')}, expected {len(columns)}"
            if not is_csv and any(cell.startswith('"') for cell in cells):
                problem += " (TSV has no quoting; CSV has, for cells that hold tabs or line breaks)"
        yield Record((), problem, where) if problem else Record(tuple(cells[index] for index in indices), "", where)


def _tsv_rows(path: Path, span: Span | None) -> Iterator[CsvRow]:
    for text, problem, where in read_lines(path, span=span):
        yield CsvRow(text.split("\t"), problem, where)


def _json_lines(path: Path, wanted: Sequence[str], span: Span | None) -> Iterator[Record]:
    for text, problem, where in read_lines(path, span=span):
        cells: tuple[Any, ...] = ()
        if not problem:
            cells, problem = _json_cells(text, wanted)
        yield Record(() if problem else cells, problem, where)


def _json_cells(text: str, wanted: Sequence[str]) -> tuple[tuple[Any, ...], str]:
    """Return the values of the wanted keys of a JSON object, and its problem ("" if none)."""
    try:
        record = parse_json(text)
    except DuplicateKeyError as error:
        return (), str(error)
    except (ValueError, RecursionError) as error:  # also ValueError for a number with thousands of digits
        return (), f"not JSON ({getattr(error, 'msg', error)})"
    if not isinstance(record, dict):
        return (), "not a JSON object"
    cells = tuple(record.get(column) for column in wanted)
    if "\\ud" in text.lower():  # only an escape sequence can encode a lone surrogate
        for column, cell in zip(wanted, cells, strict=True):
            if has_lone_surrogate(cell):
                return (), lone_surrogate(column)
    return cells, ""
