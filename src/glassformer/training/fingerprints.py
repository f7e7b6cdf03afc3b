"""Fingerprints of a run's inputs, by content: a resumed run must read what it read before."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from glassformer.checkpoint.safe_files import MANIFEST, sha256


def fingerprint_paths(data: Any, name: str, *, leave_out: Sequence[Path] = ()) -> dict[str, str]:
    """The SHA-256 of every file and folder that the fields of the dataclass `data` name, by field.

    Names do not count, so that files may be moved. Folders in `leave_out` are the run's own output. Missing files are
    left to the reader, which says what it expected.
    """
    found: dict[str, str] = {}
    for field in fields(data):
        value = getattr(data, field.name)
        paths = [value] if isinstance(value, Path) else value if isinstance(value, tuple) else []
        for number, path in enumerate(paths):
            if isinstance(path, Path) and path.exists():
                key = f"{name}.{field.name}" + (f"[{number}]" if isinstance(value, tuple) else "")
                found[key] = fingerprint_path(path, suffixes=getattr(data, "suffixes", ()), leave_out=leave_out)
    return found


def fingerprint_path(path: Path, *, suffixes: Sequence[str] = (), leave_out: Sequence[Path] = ()) -> str:
    """The SHA-256 of a file, or of the names and contents of a folder's files, or of those with these suffixes.

    A folder with a manifest is known by it: the reader of the folder verifies its files.
    """
    if path.is_file():
        return sha256(path)
    if (path / MANIFEST).is_file():
        return sha256(path / MANIFEST)
    endings = tuple(ending for suffix in suffixes for ending in (suffix, f"{suffix}.gz"))
    hidden = [folder.resolve() for folder in leave_out]
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name.endswith(endings or "") and not _is_inside(file, hidden):
            digest.update(f"{file.relative_to(path).as_posix()}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


def fingerprint_examples(examples: Iterable[Any]) -> str:
    """The SHA-256 of examples as they were read, without the place that each came from."""
    digest = hashlib.sha256()
    for example in examples:
        values = example._asdict() if hasattr(example, "_asdict") else vars(example)
        told = {name: value for name, value in values.items() if name != "where"}
        digest.update(f"{told!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _is_inside(file: Path, folders: Sequence[Path]) -> bool:
    resolved = file.resolve()
    return any(resolved.is_relative_to(folder) for folder in folders)
