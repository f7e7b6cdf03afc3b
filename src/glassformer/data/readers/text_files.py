"""Open and decode text files: UTF-8, plain or gzip. All data readers use this module.

A byte-order mark at the start is dropped. Lines end with LF or CRLF. A line with bytes that are not UTF-8 is marked
with a problem. A damaged .gz is an error that names the line where reading failed. A file in UTF-16, or compressed by
another program, is an error as a whole: some of its lines could happen to be valid UTF-8. So is a file of lines that
end in CR only, which would be one line.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from glassformer.base.names import path_suggestion
from glassformer.progress import track

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NOT_UTF8 = "not valid UTF-8"
COMPRESSED = {
    b"\x1f\x8b": "compressed by gzip, and has no name that ends in .gz",
    b"\xfd7zXZ\0": "compressed by xz",
    b"(\xb5/\xfd": "compressed by zstd",
    b"PK\x03\x04": "a zip archive",
}
"""The first bytes of compressed files, and the names of their formats in errors."""


class BadRecordError(ValueError):
    """A record of a data file cannot be used. The message names its location."""


class BadUtf8Error(BadRecordError):
    """A text file is not valid UTF-8, or in another format, which `problem` names."""

    def __init__(self, where: str, problem: str = NOT_UTF8, expected: str = ""):
        super().__init__(f"{where}: {problem}{expected}")
        self.problem, self.expected = problem, expected
        self.where = where
        """`file:line` of the first bad byte."""


class Line(NamedTuple):
    """A decoded line of a file."""

    text: str
    """The text, with U+FFFD for bytes that are not UTF-8."""
    problem: str
    """Empty, or NOT_UTF8."""
    where: str
    """Location of the line, `file:number`."""


class Span(NamedTuple):
    """Some consecutive lines of a file that is not compressed."""

    begin: int
    """Offset of the first line in bytes."""
    end: int
    """Offset of the end of the last line."""
    line: int
    """Number of the first line, counted from 1."""


def check_file(path: Path) -> None:
    """Raise an error unless `path` is a readable regular file. Data is read more than once, which excludes pipes."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: expected a file")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a pipe or a device: expected a regular file, because data is read more than once")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file: {path_suggestion(path)}")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} is not readable by this user: chmod u+r {path} makes it readable for its owner")


def bad_record(where: str, problem: str, unit: str = "records") -> BadRecordError:
    """Return the error for the bad record at `where`, with advice on how to skip such records.

    `unit` is what the advice calls them, such as "documents".
    """
    expected = ": expected a text file in UTF-8" if problem == NOT_UTF8 else ""
    return BadRecordError(f"{where}: {problem}{expected} (on_bad='skip', or --on-bad skip, skips such {unit})")


def read_lines(
    path: Path, *, keep_ends: bool = False, span: Span | None = None, is_document: bool = False
) -> Iterator[Line]:
    """Yield each line of a file, or of a span of it, without the line break unless `keep_ends`.

    A file whose lines end in CR only raises BadUtf8Error, unless its lines are joined to one document.
    """
    name = str(path)
    for number, raw in enumerate(read_raw_lines(path, span), start=1 if span is None else span.line):
        if number == 1 and not is_document:
            _check_line_ends(raw, f"{name}:1")
        if not keep_ends:
            raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        yield decode_line(raw, f"{name}:{number}")


def decode_line(raw: bytes, where: str) -> Line:
    """Decode a line from UTF-8. `where` is its location, `file:number`."""
    try:
        return Line(raw.decode("utf-8"), "", where)
    except UnicodeDecodeError:
        return Line(raw.decode("utf-8", "replace"), NOT_UTF8, where)


def read_text(path: Path) -> str:
    """Return the whole text of a file with its line breaks. Raises BadUtf8Error if it is not valid UTF-8."""
    contents = bytearray()
    for raw in read_raw_lines(path):
        contents += raw
    try:
        return contents.decode("utf-8")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise BadUtf8Error(f"{path}:{line}") from error


def check_first_line(raw: bytes, where: str) -> None:
    """Raise BadUtf8Error if a file with this first line is compressed, in UTF-16, or of NUL bytes."""
    found = next((kind for start, kind in COMPRESSED.items() if raw.startswith(start)), "")
    if re.match(rb"BZh[1-9]1AY&SY", raw):
        found = "compressed by bzip2"
    if found:
        raise BadUtf8Error(where, f"the file is {found}", ": expected plain text, or a .gz file")
    # In UTF-16, every second byte of a text in Latin letters is 0. Short lines of other texts may happen to be so.
    is_whole = len(raw) >= 8 or (len(raw) >= 3 and raw.endswith(b"\0\n"))
    if is_whole and not any(raw[:64].removesuffix(b"\n")):
        raise BadUtf8Error(where, "the file has NUL bytes", ": expected text in UTF-8; the file is damaged, or no text")
    is_half_empty = is_whole and not (any(raw[:64:2]) and any(raw[1:64:2]))
    if is_half_empty or raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadUtf8Error(where, "the file is in UTF-16", ": expected UTF-8; iconv -f UTF-16 -t UTF-8 converts it")


def _check_line_ends(raw: bytes, where: str) -> None:
    """Raise BadUtf8Error if a file with this first line has several lines that end in CR only."""
    if not raw.endswith(b"\n") and b"\r" in raw.rstrip(b"\r"):  # the whole file is one line
        expected = ": expected LF or CRLF; tr '\\r' '\\n' < FILE > NEW-FILE converts it"
        raise BadUtf8Error(where, "the lines of the file end in CR only, as on old Macs", expected)


def read_raw_lines(path: Path, span: Span | None = None) -> Iterator[bytes]:
    """Yield each line of a file, or of a span of it, as bytes, with its line break and without the byte-order mark."""
    number = 0
    try:
        with _open(path) as stream:
            lines = iter(stream) if span is None else _lines_of_span(stream, span)
            first = 1 if span is None else span.line
            for number, raw in enumerate(track(lines, f"reading {path.name}"), start=first):
                if number == 1:
                    check_first_line(raw, f"{path}:1")
                yield raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRecordError(
            f"{path}:{number + 1}: the .gz cannot be unpacked from here on ({error}): it is damaged or cut off, "
            "expected a whole file"
        ) from error
    except OSError as error:
        error.filename = error.filename or str(path)  # the read error does not name the file
        raise


def _lines_of_span(stream: IO[bytes], span: Span) -> Iterator[bytes]:
    stream.seek(span.begin)
    left = span.end - span.begin
    while left > 0 and (raw := stream.readline()):
        left -= len(raw)
        yield raw


def _open(path: Path) -> IO[bytes]:
    if not path.name.endswith(".gz"):
        return path.open("rb")
    if not path.stat().st_size:
        raise EOFError("the file is empty")  # gzip reads an empty file as an empty text
    return gzip.open(path, "rb")  # type: ignore[return-value]
