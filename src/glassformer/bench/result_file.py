"""Result files: one table of measurements with its command, machine and date, as JSON.

`tools/results_page.py` makes the tables of the documentation from such files in `benchmarks/results`.
"""

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.safe_files import write_text

NOT_RECORDED = "not recorded"


def check_new(path: Path) -> None:
    """Raise FileExistsError if `path` exists. Call it before measuring, so that no time is lost."""
    if path.exists():
        raise FileExistsError(f"{path} exists already: expected a new name")


def write_result(
    path: Path,
    *,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | float]],
    notes: Sequence[str] = (),
    runs: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a table of measurements to a new JSON file, with the command, machine and date of its origin.

    By default the origin is this process. If the table summarizes earlier runs, pass their records as `runs`: each
    holds what `origin` returned when it was measured, and the file lists the distinct values. The list `claims` of the
    file is left empty, to be filled by hand: what the result shows, its target, and the library it is compared with.
    """
    check_new(path)
    origins = [{"machine": NOT_RECORDED, "date": NOT_RECORDED, **run} for run in runs] or [origin()]
    commands = [one["command"] for one in origins if "command" in one] or [command()]
    result = {
        "title": title,
        "claims": [],
        "command": list(dict.fromkeys(commands)),
        "machine": "; ".join(dict.fromkeys(one["machine"] for one in origins)),
        "date": ", ".join(sorted({one["date"] for one in origins})),
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "notes": list(notes),
    }
    with naming_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def origin() -> dict[str, str]:
    """Return the command, machine and date of this process, for the record of one run."""
    return {"command": command(), "machine": machine(), "date": datetime.now(UTC).date().isoformat()}


def command() -> str:
    """Return the command line of this process, with the program's name instead of its full path."""
    program = Path(sys.argv[0])
    words = [program.name]
    if program.name == "__main__.py":
        words = ["python", "-m", program.parent.name]
    elif program.suffix == ".py":
        words = ["python", f"{program.parent.name}/{program.name}"]
    return shlex.join([*words, *sys.argv[1:]])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    """Return a table with these columns and rows as Markdown."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in [columns, *rows]]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def machine() -> str:
    """Return the processor or GPU, the number of threads, and the versions of torch and Python."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"
