"""A small table of numbers, which can be printed as aligned text or converted to JSON values."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A table of numbers with named rows and columns."""

    about: str
    """A sentence that explains rows and columns."""
    columns: Sequence[str]
    rows: Mapping[str, Sequence[float | None]]
    """Maps each row's name to its values, one per column; None is an empty cell."""

    def __str__(self) -> str:
        head = max(map(len, self.rows), default=0)
        cells = {name: [_cell(value) for value in row] for name, row in self.rows.items()}
        widths = [
            max(len(column), *(len(row[place]) for row in cells.values()), 1)
            for place, column in enumerate(self.columns)
        ]
        lines = []
        for name, row in (("", self.columns), *cells.items()):
            numbers = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join([name.ljust(head), *numbers]).rstrip())
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return columns and rows as a dictionary of JSON values, without the explanation `about`."""
        return {"columns": list(self.columns), "rows": {name: list(row) for name, row in self.rows.items()}}


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
