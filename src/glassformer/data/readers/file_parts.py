"""Divide data files into parts of limited size that can be read independently, by several processes.

A part begins and ends at line ends, for which the line breaks of a file are counted. CSV files, whose cells may contain
line breaks, and compressed files are not divided.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from glassformer.data.readers.records import BadRecordError, is_csv_file, kind_of
from glassformer.data.readers.text_files import Span, check_file

BLOCK = 1 << 22
"""Number of bytes that are searched for line breaks at a time."""
BYTES_PER_EXAMPLE = {"text": 2000, "table": 100, "jsonl": 200}
"""Rough size of an example by format, where lines are not counted. Compressed files hold about three times as many."""


class FilePart(NamedTuple):
    """A part of a data file, or of two aligned ones."""

    files: tuple[Path, ...]
    """The file, or the source file and the target file."""
    spans: tuple[Span, ...] = ()
    """The lines to read of each file; all of them if empty."""
    n_examples: int = 0
    """Number of examples; an estimate where an example is not a line."""

    def n_bytes(self) -> int:
        """Return the size of the part in bytes."""
        if self.spans:
            return sum(span.end - span.begin for span in self.spans)
        return sum(file.stat().st_size for file in self.files)


def divide_file(path: Path, n_bytes: int, *, separator: str | None = None) -> Iterator[FilePart]:
    """Yield parts of a file of about `n_bytes` each, or the whole file if it cannot be divided.

    With `separator`, a part ends after a line with this text, such as "" for an empty line.
    """
    check_file(path)
    kind, size = kind_of(path), path.stat().st_size
    if path.name.endswith(".gz") or is_csv_file(path):
        yield FilePart((path,), (), size * (3 if path.name.endswith(".gz") else 1) // BYTES_PER_EXAMPLE[kind])
        return
    begin, line = 0, 1
    for end, next_line in _line_starts(path, n_bytes, separator):
        span = Span(begin, end, line)
        n_examples = next_line - line if kind != "text" else (end - begin) // BYTES_PER_EXAMPLE[kind] + 1
        yield FilePart((path,), (span,), n_examples)
        begin, line = end, next_line


def divide_aligned(source: Path, target: Path, n_lines: int) -> Iterator[FilePart]:
    """Yield parts of two files that are aligned line by line, with `n_lines` lines each. Compressed files stay whole.

    Raises BadRecordError if one has more lines than the other.
    """
    for path in (source, target):
        check_file(path)
    if any(path.name.endswith(".gz") for path in (source, target)):
        n_bytes = source.stat().st_size * (3 if source.name.endswith(".gz") else 1)
        yield FilePart((source, target), (), n_bytes // BYTES_PER_EXAMPLE["table"])
        return
    ends = [list(_every_line(path, n_lines)) for path in (source, target)]
    n_source, n_target = (some[-1][1] if some else 1 for some in ends)
    if n_source != n_target:
        short, long = (source, target) if n_source < n_target else (target, source)
        count = min(n_source, n_target)
        raise BadRecordError(f"{long}:{count}: {short} has fewer lines: expected two files aligned line by line")
    begins = (0, 0)
    for number, ((left, following), (right, _)) in enumerate(zip(*ends, strict=True)):
        line = number * n_lines + 1
        spans = Span(begins[0], left, line), Span(begins[1], right, line)
        yield FilePart((source, target), spans, following - line)
        begins = left, right


def part_of_lines(path: Path, index: int, count: int) -> Span:
    """Return the `index`-th of `count` spans of a file of about equal size, counted from 1.

    The spans are in order and hold every line once; one may be empty. Raises ValueError for a compressed file.
    """
    check_file(path)
    if path.name.endswith(".gz"):
        raise ValueError(f"{path} is compressed: expected a plain file, of which a part can be read")
    size = path.stat().st_size
    with path.open("rb") as stream:
        begin, end = (_next_line(stream, size * number // count) for number in (index - 1, index))
        return Span(begin, end, 1 + _count_breaks(stream, 0, begin))


def _next_line(stream: IO[bytes], place: int) -> int:
    """Return the offset of the first line that starts at `place` or after it."""
    if not place:
        return 0
    stream.seek(place - 1)
    stream.readline()
    return stream.tell()


def _line_starts(path: Path, n_bytes: int, separator: str | None) -> Iterator[tuple[int, int]]:
    """Yield the offset and the number of the line after each part, and those of the end of the file."""
    size, counted, line = path.stat().st_size, 0, 1
    with path.open("rb") as stream:
        place = n_bytes
        while place < size:
            line += _count_breaks(stream, counted, place)
            stream.seek(place)
            line += stream.readline().endswith(b"\n")
            if separator is not None:
                while (raw := stream.readline()) and raw.decode("utf-8", "replace").strip() != separator:
                    line += raw.endswith(b"\n")
                line += raw.endswith(b"\n")
            counted = stream.tell()
            if counted >= size:
                break
            yield counted, line
            place = counted + n_bytes
        line += _count_breaks(stream, counted, size)
        if size:
            stream.seek(size - 1)
            yield size, line + (stream.read(1) != b"\n")


def _count_breaks(stream: IO[bytes], begin: int, end: int) -> int:
    stream.seek(begin)
    count, left = 0, end - begin
    while left > 0 and (block := stream.read(min(BLOCK, left))):
        count += block.count(b"\n")
        left -= len(block)
    return count


def _every_line(path: Path, n_lines: int) -> Iterator[tuple[int, int]]:
    """Yield the offset after every `n_lines` lines and the number of the line there, and those of the end."""
    place, count, last = 0, 0, b"\n"
    found = 0
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            breaks = block.count(b"\n")
            if (count + breaks) // n_lines > count // n_lines:
                places = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
                for number in range(n_lines - count % n_lines, breaks + 1, n_lines):
                    found = place + int(places[number - 1]) + 1
                    yield found, count + number + 1
            place, count, last = place + len(block), count + breaks, block[-1:]
    if place > found:
        yield place, count + (last != b"\n") + 1


def group_parts(parts: Sequence[FilePart], n_bytes: int) -> list[list[FilePart]]:
    """Return lists of consecutive parts of about `n_bytes` together, so that many small files make few lists."""
    groups: list[list[FilePart]] = []
    room = 0
    for part in parts:
        size = part.n_bytes()
        if not groups or size > room:
            groups.append([])
            room = n_bytes
        groups[-1].append(part)
        room -= size
    return groups
