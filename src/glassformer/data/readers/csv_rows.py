"""Rows of CSV files (RFC 4180), read strictly: a quoted cell may hold commas, quotes and line breaks.

Python's `csv` module is not used: it limits the length of a cell by a setting of the whole process, and reads on to the
end of the file after a quote that is never closed.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from glassformer.data.readers.text_files import BadRecordError, Line

MAX_QUOTED = 1 << 25
"""The most characters of one quoted cell. A longer one is taken for a quote that was never closed."""


class CsvRow(NamedTuple):
    """The cells of a row, or what is wrong with it; and where it begins."""

    cells: list[str]
    problem: str
    where: str


class _BadQuotesError(ValueError):
    """A quote at the wrong place."""


def read_csv_rows(lines: Iterable[Line]) -> Iterator[CsvRow]:
    """The rows of lines that still have their line breaks.

    A quote that is never closed, or one that is closed on a later line and followed by text, is a BadRecordError: where
    the next row begins is then unknown. Other problems stand in their row, and the next row can be read.
    """
    waiting = iter(lines)
    for first in waiting:
        row = _RowLines(first, waiting)
        try:
            cells = row.cells()
        except _BadQuotesError as error:
            # With an even number of quotes the line cannot have left a cell open.
            if row.n_lines > 1 or first.text.count('"') % 2:
                raise BadRecordError(f"{row.opened}: {error}; the quote that opens the cell stands here") from error
            yield CsvRow([], str(error), first.where)
            continue
        yield CsvRow(cells, row.problem, first.where)


class _RowLines:
    """One row in the reading: its current line, and the lines after it."""

    def __init__(self, first: Line, more: Iterator[Line]):
        self.line, self.problem, self.n_lines = first, first.problem, 1
        self.opened = first.where
        """Where the last quoted cell begins."""
        self._more = more

    def cells(self) -> list[str]:
        """Read the row to its end."""
        if '"' not in self.line.text:
            return self._unquoted(_without_end(self.line.text)).split(",")
        found: list[str] = []
        at = 0
        while True:
            text = _without_end(self.line.text)
            if text.startswith('"', at):
                cell, at = self._quoted(at + 1)
                text = _without_end(self.line.text)  # the cell may have ended on a later line
                if at < len(text) and text[at] != ",":
                    raise _BadQuotesError(f"not CSV: text after the quote that closes cell {len(found) + 1}")
                found.append(cell)
            else:
                end = text.find(",", at)
                end = len(text) if end < 0 else end
                found.append(self._unquoted(text[at:end]))
                at = end
            if at >= len(text):
                return found
            at += 1

    def _unquoted(self, text: str) -> str:
        if "\r" in text:
            self.problem = self.problem or "not CSV: a carriage return outside quotes"
        return text

    def _quoted(self, at: int) -> tuple[str, int]:
        """The cell whose opening quote stands before `at`, and the place after its closing quote."""
        self.opened = self.line.where
        parts: list[str] = []
        size = 0
        while True:
            text = self.line.text
            quote = text.find('"', at)
            if quote < 0:
                parts.append(text[at:])
                size += len(parts[-1])
                self._next_line(size)
                at = 0
            elif text.startswith('"', quote + 1):
                parts.append(text[at : quote + 1])
                at = quote + 2
            else:
                parts.append(text[at:quote])
                return "".join(parts), quote + 1

    def _next_line(self, size: int) -> None:
        if size > MAX_QUOTED:
            raise BadRecordError(
                f"{self.opened}: the quote that opens a cell here is not closed within {MAX_QUOTED:,} characters: "
                "expected a closing quote"
            )
        line = next(self._more, None)
        if line is None:
            raise BadRecordError(f"{self.opened}: the quote that opens a cell here is never closed")
        self.line, self.n_lines = line, self.n_lines + 1
        self.problem = self.problem or line.problem


def _without_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
