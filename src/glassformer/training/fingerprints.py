"""Fingerprints (hashes) of a training run's input data, so that a run is not resumed with other data by mistake."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from glassformer.checkpoint.safe_files import MANIFEST, sha256


def paths_of(data: Any) -> dict[str, Path]:
    """Return the paths in the fields of the dataclass `data`, by field name; those in a tuple as "valid[0]"."""
    found: dict[str, Path] = {}
    for field in fields(data):
        value = getattr(data, field.name)
        if isinstance(value, Path):
            found[field.name] = value
        elif isinstance(value, tuple):
            found |= {f"{field.name}[{i}]": path for i, path in enumerate(value) if isinstance(path, Path)}
    return found


def fingerprint_paths(data: Any) -> dict[str, str]:
    """Return the fingerprint of each path in the fields of the dataclass `data`, by name, such as "data.valid[0]".

    The path itself has no influence, so that files may be moved. Missing files are left out; reading reports them.
    """
    found: dict[str, str] = {}
    for name, path in paths_of(data).items():
        if path.exists():
            found[f"data.{name}"] = fingerprint_path(path, suffixes=getattr(data, "suffixes", ()))
    return found


def fingerprint_model(path: Path) -> str:
    """Return the fingerprint of a model file or folder; the SHA-256 of the manifest if the folder has one."""
    return sha256(path / MANIFEST) if (path / MANIFEST).is_file() else fingerprint_path(path)


def fingerprint_path(path: Path, *, suffixes: Sequence[str] = ()) -> str:
    """Return a hash of a file or of a folder.

    For a file it is the SHA-256 of the content, followed by the suffix, such as .tsv or .tsv.gz. For a folder it covers
    the names and contents of all files, or only of those with one of the `suffixes` (or with .gz after it) if given.
    """
    if path.is_file():
        return sha256(path) + "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]).lower()
    endings = tuple(ending for suffix in suffixes for ending in (suffix, f"{suffix}.gz"))
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name.endswith(endings or ""):
            digest.update(f"{file.relative_to(path).as_posix()}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


def fingerprint_examples(examples: Iterable[Any]) -> str:
    """Return a hash of the examples' fields, except `where`, the file and line that an example came from."""
    digest = hashlib.sha256()
    for example in examples:
        values = example._asdict() if hasattr(example, "_asdict") else vars(example)
        told = {name: value for name, value in values.items() if name != "where"}
        digest.update(f"{told!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
