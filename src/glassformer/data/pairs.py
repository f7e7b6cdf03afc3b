"""Read sentence pairs: two aligned text files, or TSV, CSV or JSONL with a source and a target; plain or gzip.

A bad record is an error that names `file:line`, or with `on_bad="skip"` is counted and passed over. Files stream:
memory stays flat however long they are.
"""

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Literal, NamedTuple

OnBad = Literal["error", "skip"]
TABLES = {".tsv": "\t", ".csv": ","}


class Pair(NamedTuple):
    """A source and its target."""

    source: str
    target: str


class BadRecordError(ValueError):
    """A record that cannot be used, with the place it was found."""


@dataclass
class PairReader:
    """Iterates over the pairs of some files, as often as asked; `skipped` counts what was bad in the last pass."""

    sources: Sequence[Path]
    """Text files, each aligned line by line with the file at its place in `targets`; or tables, without targets."""
    targets: Sequence[Path] = ()
    source_column: str = "source"
    target_column: str = "target"
    on_bad: OnBad = "error"
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.targets and len(self.targets) != len(self.sources):
            raise ValueError(f"{len(self.sources)} source files and {len(self.targets)} target files: expected as many")
        for path in (*self.sources, *self.targets):
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
        for path in self.sources:
            if not self.targets and kind_of(path) == "text":
                raise ValueError(
                    f"{path} holds a text a line: expected a target file beside it, or a .tsv, .csv or .jsonl with both"
                )

    def __iter__(self) -> Iterator[Pair]:
        self.skipped.clear()
        for pair, problem, where in self._records():
            if pair is not None and not problem:
                yield pair
            elif self.on_bad == "error":
                raise BadRecordError(f"{where}: {problem} (on_bad='skip' passes over such records)")
            else:
                self.skipped[problem] += 1

    def _records(self) -> Iterator[tuple[Pair | None, str, str]]:
        """Each record with what is wrong with it ("" if nothing) and where it stands."""
        if self.targets:
            for source, target in zip(self.sources, self.targets, strict=True):
                yield from _aligned(source, target)
            return
        for path in self.sources:
            read = _json_lines if kind_of(path) == "jsonl" else _table
            yield from read(path, self.source_column, self.target_column)


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


def _judge(source: str | None, target: str | None, where: str) -> tuple[Pair | None, str, str]:
    if source is None or target is None:
        return None, "not valid UTF-8", where
    pair = Pair(source.strip(), target.strip())
    if not pair.source or not pair.target:
        return pair, f"empty {'source' if not pair.source else 'target'}", where
    return pair, "", where


def _aligned(source: Path, target: Path) -> Iterator[tuple[Pair | None, str, str]]:
    with open_bytes(source) as sources, open_bytes(target) as targets:
        lines = zip_longest(read_lines(sources, str(source)), read_lines(targets, str(target)))
        for left, right in lines:
            if left is None or right is None:
                # From here on nothing is aligned with certainty, so skipping cannot mend it.
                short, long_place = (source, right[1]) if right is not None else (target, left[1] if left else "")
                raise BadRecordError(f"{long_place}: {short} has fewer lines: expected two files aligned line by line")
            yield _judge(left[0], right[0], left[1] if left[0] is None or not left[0].strip() else right[1])


def _table(path: Path, source_column: str, target_column: str) -> Iterator[tuple[Pair | None, str, str]]:
    with open_bytes(path) as stream:
        delimiter = TABLES[Path(path.name.removesuffix(".gz")).suffix.lower()]
        places = read_lines(stream, str(path))
        header = next(places, (None, ""))[0]
        columns = next(csv.reader([header or ""], delimiter=delimiter), [])
        for column in (source_column, target_column):
            if column not in columns:
                raise BadRecordError(
                    f"{path}:1: no column {column!r} in the header ({', '.join(columns) or 'which is empty'}): "
                    "name yours with the options for columns"
                )
        wanted = columns.index(source_column), columns.index(target_column)
        for text, where in places:
            if text is None:
                yield None, "not valid UTF-8", where
                continue
            # A tab-separated line is split as it stands; only CSV quotes, and a quoted field may not hold a line break.
            cells = text.split("\t") if delimiter == "\t" else next(csv.reader(io.StringIO(text)), [])
            if len(cells) <= max(wanted):
                yield None, f"{len(cells)} columns, expected {len(columns)}", where
            else:
                yield _judge(cells[wanted[0]], cells[wanted[1]], where)


def _json_lines(path: Path, source_column: str, target_column: str) -> Iterator[tuple[Pair | None, str, str]]:
    with open_bytes(path) as stream:
        for text, where in read_lines(stream, str(path)):
            try:
                record = json.loads(text) if text is not None else None
            except json.JSONDecodeError as error:
                yield None, f"not JSON ({error.msg})", where
                continue
            if text is None:
                yield None, "not valid UTF-8", where
            elif not isinstance(record, dict):
                yield None, "not a JSON object", where
            elif missing := [c for c in (source_column, target_column) if not isinstance(record.get(c), str)]:
                yield None, f"no text under {missing[0]!r}", where
            else:
                yield _judge(record[source_column], record[target_column], where)
