"""Records of TSV, CSV or JSONL files, plain or gzip; a bad one names its file and line.

Files stream: memory stays flat however long they are.
"""

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, Literal, NamedTuple, TypeVar

OnBad = Literal["error", "skip"]
TABLES = {".tsv": "\t", ".csv": ","}
Example = TypeVar("Example")


class BadRecordError(ValueError):
    """A record that cannot be used, with the place it was found."""


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
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
            if kind_of(path) == "text":
                raise ValueError(f"{path} holds a text a line: expected a .tsv, .csv or .jsonl; .gz too")

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
            raise BadRecordError(f"{record.where}: {problem} (on_bad='skip' passes over such records)")
        skipped[problem] += 1


def kind_of(path: Path) -> Literal["text", "table", "jsonl"]:
    """How a file is laid out, by its name without .gz."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES:
        return "table"
    return "jsonl" if suffix in (".jsonl", ".ndjson") else "text"


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where its name ends in .gz."""
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def read_lines(stream: Iterable[bytes], name: str) -> Iterator[tuple[str | None, str]]:
    """Each line as text, or None where it is not UTF-8, and its place `name:number`."""
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n"), f"{name}:{number}"
        except UnicodeDecodeError:
            yield None, f"{name}:{number}"


def read_records(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """The records of a table or a JSONL file; the cells of a table are strings, those of JSONL any value."""
    return (_json_lines if kind_of(path) == "jsonl" else _table)(path, columns)


def as_text(cell: object, column: str) -> str:
    """A cell that must hold text."""
    if not isinstance(cell, str):
        raise ValueError(f"no text under {column!r}")
    if not cell.strip():
        raise ValueError(f"empty {column}")
    if any("\ud800" <= character <= "\udfff" for character in cell):
        raise ValueError(f"half a surrogate pair under {column!r}: expected whole characters")
    return cell.strip()


def _table(path: Path, wanted: Sequence[str]) -> Iterator[Record]:
    with open_bytes(path) as stream:
        delimiter = TABLES[Path(path.name.removesuffix(".gz")).suffix.lower()]
        places = read_lines(stream, str(path))
        header = (next(places, (None, ""))[0] or "").removeprefix("\ufeff")  # some programs begin a file with it
        columns = next(csv.reader([header], delimiter=delimiter), [])
        for column in wanted:
            if column not in columns:
                raise BadRecordError(
                    f"{path}:1: no column {column!r} in the header ({', '.join(columns) or 'which is empty'}): "
                    "name yours with the options for columns"
                )
        indices = [columns.index(column) for column in wanted]
        for text, where in places:
            if text is None:
                yield Record((), "not valid UTF-8", where)
                continue
            # A tab-separated line is split as it stands; only CSV quotes, and a quoted field may not hold a line break.
            try:
                cells = text.split("\t") if delimiter == "\t" else next(csv.reader(io.StringIO(text)), [])
            except csv.Error as error:
                yield Record((), f"not CSV ({error})", where)
                continue
            if len(cells) <= max(indices):
                yield Record((), f"{len(cells)} columns, expected {len(columns)}", where)
            else:
                yield Record(tuple(cells[index] for index in indices), "", where)


def _json_lines(path: Path, wanted: Sequence[str]) -> Iterator[Record]:
    with open_bytes(path) as stream:
        for text, where in read_lines(stream, str(path)):
            if text is None:
                yield Record((), "not valid UTF-8", where)
                continue
            try:
                record = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                yield Record((), f"not JSON ({getattr(error, 'msg', error)})", where)
                continue
            if not isinstance(record, dict):
                yield Record((), "not a JSON object", where)
            else:
                yield Record(tuple(record.get(column) for column in wanted), "", where)
