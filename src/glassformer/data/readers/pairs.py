"""Read sentence pairs: two aligned text files, or TSV, CSV or JSONL with two columns; plain or gzip.

A bad record raises an error that names `file:line`; with `on_bad="skip"` it is skipped and counted. Files are streamed,
so memory use does not grow with their size.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from glassformer.data.readers.records import BadRecordError, OnBad, kind_of, read_records
from glassformer.data.readers.text_files import Span, bad_record, check_file, read_lines


class Pair(NamedTuple):
    """A source text and its target text."""

    source: str
    target: str


@dataclass
class PairReader:
    """Yields the sentence pairs in some files each time it is iterated over.

    A bad record raises an error if `on_bad` is "error". If it is "skip", the record is left out, and `skipped` counts
    the bad records of the last pass by problem.
    """

    sources: Sequence[Path]
    """Text files, each aligned line by line with the file at the same index in `targets`.

    Without `targets`: TSV, CSV or JSONL files that contain both texts.
    """
    targets: Sequence[Path] = ()
    source_column: str = "source"
    target_column: str = "target"
    on_bad: OnBad = "error"
    skipped: Counter[str] = field(default_factory=Counter)
    language_tags: bool = False
    """Whether each source starts with the language of its target file: `>>de<<` if that is called train.de."""
    n_read: int | None = None
    """Number of pairs in the last complete pass; None before the first."""
    spans: Sequence[Span] = ()
    """The part to read of the first file in `sources` and of the first in `targets`; without spans, all is read."""

    def __post_init__(self) -> None:
        if self.targets and len(self.targets) != len(self.sources):
            raise ValueError(
                f"{len(self.sources)} source files and {len(self.targets)} target files: expected equally many"
            )
        for path in (*self.sources, *self.targets):
            check_file(path)
        if self.language_tags and not self.targets:
            raise ValueError("language_tags needs target files, whose names end with a language: expected --target")
        for path in self.sources:
            if not self.targets and kind_of(path) == "text":
                raise ValueError(
                    f"{path} has one text per line: expected --target with its translations, or a .tsv, .csv or "
                    ".jsonl with both"
                )
        for source, target in zip(self.sources, self.targets, strict=False):
            _check_aligned(source, target)

    def __iter__(self) -> Iterator[Pair]:
        self.skipped.clear()
        count = 0
        for pair, problem, where in self._records():
            if pair is not None and not problem:
                count += 1
                yield pair
            elif self.on_bad == "error":
                raise bad_record(where, problem)
            else:
                self.skipped[problem] += 1
        self.n_read = count

    def _records(self) -> Iterator[tuple[Pair | None, str, str]]:
        """Yield each pair (None if it cannot be read) with its problem ("" if none) and its `file:line`."""
        if self.targets:
            for source, target in zip(self.sources, self.targets, strict=True):
                tag = f">>{target.name.removesuffix('.gz').rpartition('.')[2]}<< " if self.language_tags else ""
                for pair, problem, where in _aligned(source, target, self.spans):
                    tagged = pair if pair is None or problem else Pair(f"{tag}{pair.source}", pair.target)
                    yield tagged, problem, where
            return
        columns = (self.source_column, self.target_column)
        for path in self.sources:
            for cells, problem, where in read_records(path, columns, self.spans[0] if self.spans else None):
                missing = [column for column, cell in zip(columns, cells, strict=False) if not isinstance(cell, str)]
                if problem or missing:
                    yield None, problem or f"no text under {missing[0]!r}", where
                else:
                    yield _judge(cells[0], cells[1], where)


def _check_aligned(source: Path, target: Path) -> None:
    """Raise ValueError unless two files can be aligned line by line: two text files, neither a table nor JSONL."""
    for path in (source, target):
        if (kind := kind_of(path)) != "text":
            raise ValueError(
                f"{path} is {'a table' if kind == 'table' else 'JSONL'}: leave out --target (or --valid-target) and "
                "name its columns with --source-column and --target-column; with a target, expected two text files "
                "with one sentence per line"
            )
    if source.samefile(target):
        raise ValueError(f"{source} is both source and target: expected two text files aligned line by line")


def _judge(source: str, target: str, where: str) -> tuple[Pair | None, str, str]:
    pair = Pair(source.strip(), target.strip())
    if not pair.source or not pair.target:
        return pair, f"empty {'source' if not pair.source else 'target'}", where
    return pair, "", where


def _aligned(source: Path, target: Path, spans: Sequence[Span]) -> Iterator[tuple[Pair | None, str, str]]:
    left_span, right_span = spans or (None, None)
    for left, right in zip_longest(read_lines(source, span=left_span), read_lines(target, span=right_span)):
        if left is None or right is None:
            # The alignment of the following lines is unknown, so skipping does not help.
            short, long_place = (source, right.where) if left is None else (target, left.where)
            raise BadRecordError(f"{long_place}: {short} has fewer lines: expected two files aligned line by line")
        if left.problem or right.problem:
            bad = left if left.problem else right
            yield None, bad.problem, bad.where
        else:
            yield _judge(left.text, right.text, right.where if left.text.strip() else left.where)
