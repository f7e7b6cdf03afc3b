"""The source code of Python's standard library, a corpus that every installation has."""

import ast
import hashlib
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from glassformer.data.readers.text_documents import Document, SplitDocuments

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
"""Excluded folders: third-party code, and tests, which are long and repetitive."""
HELD_OUT = 20
"""On average, one of this many files is for validation."""
SHORTEST = 40
"""Minimum length of a docstring in characters."""


def source_files() -> list[Path]:
    """Return the Python files of the standard library, sorted by path relative to `library_folder()`."""
    root = library_folder()
    found = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(path for path in found if not LEFT_OUT.intersection(path.parts))


def library_folder() -> Path:
    """Return the folder of Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def is_held_out(name: str) -> bool:
    """Return whether the file with this relative path is for validation.

    A hash of the path decides, so that a changed file stays in its split.
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % HELD_OUT == 0


def standard_library(kind: Literal["code", "docstrings"]) -> SplitDocuments:
    """Return one document per file of Python's standard library: its source code, or all of its docstrings."""
    train: list[Document] = []
    valid: list[Document] = []
    for name, text in _texts():
        document = Document(text if kind == "code" else "\n\n".join(docstrings(text)), name)
        if document.text.strip():
            (valid if is_held_out(name) else train).append(document)
    if not train or not valid:
        raise ValueError(f"{library_folder()} holds {len(train)} files of Python: expected the standard library")
    return SplitDocuments(train, valid)


def docstrings(source: str) -> Iterator[str]:
    """Yield the unique dedented docstrings of a module's source code, of at least SHORTEST characters each.

    The module's own comes first, then those of its classes and functions, then those of nested ones.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about invalid escapes in old sources
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            if len(text) >= SHORTEST and text not in seen:
                seen.add(text)
                yield text


def _texts() -> Iterator[tuple[str, str]]:
    for name in source_files():
        try:
            text = (library_folder() / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a few old files declare another encoding in their first line
            continue
        if text.strip():
            yield name.as_posix(), text
