"""Fingerprints (hashes) of a training run's input data, so that a run is not resumed with other data by mistake."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from glassformer.checkpoint.safe_files import MANIFEST, sha256

PREPARED = "prepared.json"
"""File of a folder of tokenized data that lists its shards."""
LARGE_FILE, N_SAMPLES, SAMPLE_BYTES = 1 << 30, 64, 1 << 20
"""Size in bytes from which on a file is hashed by samples, which takes no longer for larger files."""


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
        if (path / PREPARED).is_file():  # it lists the sizes of all files in the folder
            found[f"data.{name}"] = sha256(path / PREPARED)
        elif path.exists():
            found[f"data.{name}"] = fingerprint_path(path, suffixes=getattr(data, "suffixes", ()))
    return found


def fingerprint_model(path: Path) -> str:
    """Return the fingerprint of a model file or folder; the SHA-256 of the manifest if the folder has one."""
    return sha256(path / MANIFEST) if (path / MANIFEST).is_file() else fingerprint_path(path)


def fingerprint_path(path: Path, *, suffixes: Sequence[str] = ()) -> str:
    """Return a hash of a file or of a folder.

    For a file it is the SHA-256 of the content, followed by the suffix, such as .tsv or .tsv.gz. Of a file of more than
    `LARGE_FILE` bytes only the size and `N_SAMPLES` pieces are hashed. For a folder the hash covers the names and
    contents of all files, or only of those with one of the `suffixes` (or with .gz after it) if given.
    """
    if path.is_file():
        content = sha256(path) if path.stat().st_size <= LARGE_FILE else _sampled(path)
        return content + "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]).lower()
    endings = tuple(ending for suffix in suffixes for ending in (suffix, f"{suffix}.gz"))
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name.endswith(endings or ""):
            digest.update(f"{file.relative_to(path).as_posix()}\0{sha256(file)}\n".encode())
    return digest.hexdigest()


def _sampled(path: Path) -> str:
    """Return the SHA-256 of a file's size and of pieces that are spread over it, the first and the last included."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        for number in range(N_SAMPLES):
            stream.seek((size - SAMPLE_BYTES) * number // (N_SAMPLES - 1))
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()


def fingerprint_examples(examples: Iterable[Any]) -> str:
    """Return a hash of the examples' fields, except `where`, the file and line that an example came from."""
    digest = hashlib.sha256()
    for example in examples:
        values = example._asdict() if hasattr(example, "_asdict") else vars(example)
        contents = {name: value for name, value in values.items() if name != "where"}
        digest.update(f"{contents!r}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
