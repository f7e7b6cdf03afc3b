"""Result files: one table of measurements with its command, machine and date, as JSON.

`tools/results_page.py` makes the tables of the documentation from such files in `benchmarks/results`.
"""

import json
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.safe_files import write_text


def check_new(path: Path) -> None:
    """Raise FileExistsError if there is a file already, before any time is spent on measuring."""
    if path.exists():
        raise FileExistsError(f"{path} exists already: expected a new name")


def write_result(
    path: Path, *, title: str, columns: Sequence[str], rows: Sequence[Sequence[str | float]], notes: Sequence[str] = ()
) -> None:
    """Write a table of measurements. Command, machine and date are those of this process.

    `claims` is empty: what a result shows, and the target and the peer it is held against, are added by hand.
    """
    check_new(path)
    result = {
        "title": title,
        "claims": [],
        "command": [shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])],
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "notes": list(notes),
    }
    with naming_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def machine() -> str:
    """Return the processor or GPU, the number of threads, and the versions of torch and Python."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"
