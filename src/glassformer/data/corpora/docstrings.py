"""Summarization data from the docstrings of Python's standard library: the first line is the summary of the rest."""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__phello__"})
LONGEST_FILE = 1_000_000
FEWEST_WORDS = 6
"""Minimum number of words in the text to summarize."""


class Docstring(NamedTuple):
    """A docstring, split into its first line (`summary`) and the text after the first empty line (`source`)."""

    source: str
    summary: str


@cache
def docstrings(folder: Path | None = None) -> tuple[Docstring, ...]:
    """Return the unique docstrings of Python's standard library, or of the Python files in `folder`.

    Files are parsed, not run. Only docstrings with a summary line and at least FEWEST_WORDS further words are included.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    found: dict[str, Docstring] = {}
    for path in sorted(root.rglob("*.py")):
        if not LEFT_OUT.intersection(path.relative_to(root).parts) and path.stat().st_size <= LONGEST_FILE:
            for one in _in_file(path):
                found.setdefault(one.source.lower(), one)
    if not found:
        raise ValueError(f"{root} holds no Python files with docstrings: expected the standard library's sources")
    return tuple(found.values())


def _in_file(path: Path) -> Iterator[Docstring]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about invalid escapes in old sources
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
            summary, source = " ".join(first.split()), " ".join(rest.split())
            if first and "\n" not in first and len(summary.split()) > 2 and len(source.split()) >= FEWEST_WORDS:
                yield Docstring(source, summary)
