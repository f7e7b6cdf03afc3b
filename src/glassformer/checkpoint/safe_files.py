"""Files that are written whole or not at all, and folders that are sealed with checksums."""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from glassformer.base.checks import shortened, shown
from glassformer.base.write_errors import naming_write_errors

MANIFEST = "manifest.json"
MAX_JSON_BYTES = 64 * 2**20
"""No config, tokenizer or manifest of a real model is larger."""


class CorruptFolderError(ValueError):
    """A folder whose files are not what its manifest says."""


def seal_folder(folder: Path, *, owner: str = "") -> None:
    """Sync every file to the disk and write the manifest: the SHA-256 of each, and who wrote the folder."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != MANIFEST)
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    manifest = {"sha256": {file.name: sha256(file) for file in files}}
    write_text(folder / MANIFEST, json.dumps({"owner": owner, **manifest} if owner else manifest, indent=2))
    # Some libraries write their files readable by the owner alone. The manifest has the mode that the umask asks for.
    mode = stat.S_IMODE((folder / MANIFEST).stat().st_mode)
    for file in files:
        file.chmod(mode)
    sync_folder(folder)


class SealedFolder:
    """A folder with a manifest, through which its files are read: a file that the manifest does not list is refused.

    Each file's checksum is compared when the file is first asked for.
    """

    def __init__(self, path: Path):
        self.path = path
        self._sums = _read_manifest(path / MANIFEST)
        self._verified: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the folder holds a file of this name, or its manifest says so."""
        return name in self._sums or os.path.lexists(self.path / name)

    def file(self, name: str) -> Path:
        """The path of a file that the manifest lists and whose checksum is right; else an error."""
        file = self.path / name
        if name not in self._sums:
            if not os.path.lexists(file):
                raise CorruptFolderError(f"{file} is missing: expected a file")
            raise CorruptFolderError(
                f"{file} is not in {MANIFEST}: expected its checksum there; save the model again to list every file"
            )
        if name not in self._verified:
            self._verify(file)
            self._verified.add(name)
        return file

    def check_listed(self, names: Iterable[str]) -> None:
        """Raise where the folder holds a file of one of these names that the manifest does not list."""
        for name in names:
            if self.has(name):
                self.file(name)

    def verify(self) -> None:
        """Raise unless every file of the manifest is there and unchanged."""
        for name in self._sums:
            self.file(name)

    def _verify(self, file: Path) -> None:
        if not file.is_file():
            raise CorruptFolderError(f"{file} is missing: expected a file")
        if file.is_symlink() and self.path.resolve() not in file.resolve().parents:
            raise CorruptFolderError(f"{file} is a link that leads out of its folder: expected a file")
        try:
            found = sha256(file)
        except OSError as error:
            raise CorruptFolderError(f"{file} cannot be read: {error}") from error
        if found != self._sums[file.name]:
            raise CorruptFolderError(f"{file} is not what was written: its checksum differs")


def verify_folder(folder: Path) -> SealedFolder:
    """The folder to read from, after every file of its manifest was found there and unchanged; else an error."""
    sealed = SealedFolder(folder)
    sealed.verify()
    return sealed


def _read_manifest(file: Path) -> dict[str, str]:
    """The checksums of a manifest, by the names of the files."""
    if not file.exists():
        folder = file.parent
        hint = f"use {folder.with_suffix('')}" if folder.suffix == ".run" else "check the name"
        raise CorruptFolderError(
            f"{file} is missing: expected a model folder that was trained here, or one of Hugging Face; {hint}"
        )
    sums = read_json_object(file).get("sha256")
    if not isinstance(sums, dict):
        raise CorruptFolderError(f"{file} has no table of checksums: expected 'sha256', with one for each file")
    for name, digest in sums.items():
        if Path(name).name != name or name in ("", ".", "..", MANIFEST) or not name.isprintable():
            raise CorruptFolderError(f"{file} names {shown(name)}: expected a plain file name")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise CorruptFolderError(
                f"{file} has the checksum {shown(digest)} for {shown(name)}: expected 64 hexadecimal digits"
            )
    return sums


def read_json(file: Path, *, strict: bool = True) -> Any:
    """The value in a JSON file. With `strict`, NaN, Infinity and keys that are there twice are refused.

    Whatever is wrong with the file, the error is a CorruptFolderError that names it.
    """
    if not file.is_file():  # a pipe would be waited for
        raise CorruptFolderError(f"{file} is missing: expected a file")
    try:
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CorruptFolderError(f"{file} has {size:,} bytes: expected at most {MAX_JSON_BYTES:,} of JSON")
        text = file.read_text(encoding="utf-8")
        if not strict:
            return json.loads(text)
        return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse, parse_float=_finite)
    except CorruptFolderError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFolderError(f"{file} cannot be read: {shortened(str(error), 300)}") from error


def read_json_object(file: Path, *, strict: bool = True) -> dict[str, Any]:
    """The object in a JSON file; `strict` as for `read_json`."""
    values = read_json(file, strict=strict)
    if not isinstance(values, dict):
        raise CorruptFolderError(f"{file} holds {shown(values)}: expected a JSON object")
    return values


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twin)} is there twice: expected it once")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}: expected finite numbers")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(shown(text))
    return number


def sha256(file: Path) -> str:
    """The checksum of a file, read in pieces."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(file: Path, text: str) -> None:
    """Write a file that is either the old one or the new one, whole, whatever happens."""
    with replacing(file) as work:
        work.write_text(text, encoding="utf-8")


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield the temporary path to write to. If the block succeeds, rename it to `file`; else the old file stays.

    An error of writing names `file` and the next step.
    """
    work = file.with_name(f".{file.name}.part")
    with naming_write_errors(file, work):
        try:
            yield work
            with work.open("rb") as stream:
                os.fsync(stream.fileno())
            work.replace(file)
        finally:
            with suppress(OSError):  # the reason why there is no such file is being raised
                work.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
