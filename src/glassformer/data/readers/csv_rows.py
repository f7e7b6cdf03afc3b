"""A strict CSV reader (RFC 4180). Quoted cells may contain commas, quotes and line breaks.

Python's `csv` module is not used, because its cell size limit is a process-wide setting and an unclosed quote makes it
read to the end of the file.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from glassformer.data.readers.text_files import BadRecordError, Line

MAX_QUOTED = 1 << 25
"""Maximum length of a quoted cell in characters. A longer cell counts as an unclosed quote."""


class CsvRow(NamedTuple):
    """The cells of a row, its problem ("" if none), and the `file:line` where it starts."""

    cells: list[str]
    problem: str
    where: str


class _BadQuotesError(ValueError):
    """A row has a quote at a wrong position."""


def read_csv_rows(lines: Iterable[Line]) -> Iterator[CsvRow]:
    """Parse the lines of a CSV file, which must still have their line breaks, and yield its rows.

    An unclosed quote, or text after the closing quote of a multi-line cell, raises BadRecordError, because the start of
    the next row is unknown. Other problems are stored in the row, and reading continues.
    """
    waiting = iter(lines)
    for first in waiting:
        row = _RowLines(first, waiting)
        try:
            cells = row.cells()
        except _BadQuotesError as error:
            # A line with an even number of quotes cannot leave a cell open.
            if row.n_lines > 1 or first.text.count('"') % 2:
                raise BadRecordError(f"{row.opened}: {error}; the quote that opens the cell stands here") from error
            yield CsvRow([], str(error), first.where)
            continue
        yield CsvRow(cells, row.problem, first.where)


class _RowLines:
    """Parser of one row, with the current line and an iterator over the lines after it."""

    def __init__(self, first: Line, more: Iterator[Line]):
        self.line, self.problem, self.n_lines = first, first.problem, 1
        self.opened = first.where
        """`file:line` where the last quoted cell starts."""
        self._more = more

    def cells(self) -> list[str]:
        """Return the cells of the row. Reads further lines if a quoted cell contains line breaks."""
        if '"' not in self.line.text:
            return self._unquoted(_without_end(self.line.text)).split(",")
        found: list[str] = []
        at = 0
        while True:
            text = _without_end(self.line.text)
            if text.startswith('"', at):
                cell, at = self._quoted(at + 1)
                text = _without_end(self.line.text)  # the cell may end on a later line
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
        """Return the quoted cell whose text starts at position `at`, and the position after its closing quote."""
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
