"""Files that are written whole or not at all, and folders that are sealed with checksums."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MANIFEST = "manifest.json"


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


def verify_folder(folder: Path) -> None:
    """Raise unless every file of the manifest is there and unchanged."""
    if (folder / MANIFEST).exists() and not (folder / MANIFEST).is_file():
        raise CorruptFolderError(f"{folder / MANIFEST} is no file: expected one")  # a pipe would be waited for
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["sha256"]
        entries = [(str(name), str(digest)) for name, digest in sums.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFolderError(f"{folder / MANIFEST} cannot be read: {error}") from error
    for name, digest in entries:
        file = folder / name
        if Path(name).name != name:
            raise CorruptFolderError(f"{folder / MANIFEST} names {name!r}: expected a plain file name")
        if not file.is_file():
            raise CorruptFolderError(f"{file} is missing")
        if sha256(file) != digest:
            raise CorruptFolderError(f"{file} is not what was written: its checksum differs")


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
    """Where to write what shall become `file`, whole, when the block ends well; else the old one stays."""
    work = file.with_name(f".{file.name}.part")
    try:
        yield work
        with work.open("rb") as stream:
            os.fsync(stream.fileno())
        work.replace(file)
    finally:
        work.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
