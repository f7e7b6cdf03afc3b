"""Safe file access: atomic writes, paths that cannot leave their folder, strict JSON, and manifests of checksums.

A manifest (`manifest.json`) lists the SHA-256 of every other file of its folder, and of the folders inside it, by names
such as `1_Pooling/config.json`. `output_folder.py` writes whole folders atomically.
"""

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
"""The largest JSON file that is read. No real config, tokenizer or manifest is larger."""


class CorruptFolderError(ValueError):
    """A model file is missing or damaged, or differs from its folder's manifest."""


def seal_folder(folder: Path, *, owner: str = "") -> None:
    """Fsync every file of a new folder and write its manifest: the SHA-256 of each file, and the `owner` if given.

    `owner` names the training run that may later replace the folder. All files get the manifest's permissions.
    """
    found = (*folder.glob("*"), *folder.glob("*/*"))
    files = sorted(file for file in found if file.is_file() and file != folder / MANIFEST)
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    manifest = {"sha256": {file.relative_to(folder).as_posix(): sha256(file) for file in files}}
    write_text(folder / MANIFEST, json.dumps({"owner": owner, **manifest} if owner else manifest, indent=2))
    # Some libraries create files with mode 0600. Give all files the manifest's mode, which follows the umask.
    mode = stat.S_IMODE((folder / MANIFEST).stat().st_mode)
    for file in files:
        file.chmod(mode)
    for place in {file.parent for file in files} | {folder}:
        sync_folder(place)


class SealedFolder:
    """A folder with a manifest. Only files that the manifest lists can be read.

    The checksum of a file is compared when the file is first requested.
    """

    def __init__(self, path: Path):
        self.path = path
        self._sums = _read_manifest(path / MANIFEST)
        self._verified: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether a file of this name exists in the folder or is listed in its manifest."""
        return name in self._sums or os.path.lexists(self.path / name)

    def file(self, name: str) -> Path:
        """Return the path of a file. Raises CorruptFolderError unless it is listed in the manifest and unchanged."""
        file = self.path / name
        if name not in self._sums:
            if not os.path.lexists(file):
                raise CorruptFolderError(f"{file} is missing: expected a file")
            raise CorruptFolderError(
                f"{file} is not in {MANIFEST}: expected its checksum there; save the model again to list every file"
            )
        if name not in self._verified:
            self._verify(name)
            self._verified.add(name)
        return file

    def check_listed(self, names: Iterable[str]) -> None:
        """Check those files of `names` that exist or that the manifest lists.

        Raises CorruptFolderError if one of them is not in the manifest, is missing or has changed.
        """
        for name in names:
            if self.has(name):
                self.file(name)

    def verify(self) -> None:
        """Raise CorruptFolderError unless every file in the manifest exists and is unchanged."""
        for name in self._sums:
            self.file(name)

    def _verify(self, name: str) -> None:
        inner, _, last = name.rpartition("/")
        if inner and (self.path / inner).is_symlink():
            raise CorruptFolderError(f"{self.path / inner} is a link: expected a folder")
        file = confined_path(self.path / inner, last)
        try:
            found = sha256(file)
        except OSError as error:
            raise CorruptFolderError(f"{file} cannot be read: {error}") from error
        if found != self._sums[name]:
            raise CorruptFolderError(f"{file} has changed: its checksum differs from the manifest")


def confined_path(folder: Path, name: object) -> Path:
    """Return the path of the file `name` in `folder`, where `name` may come from an untrusted index or manifest.

    Raises CorruptFolderError if the file is missing, or if the name or a symbolic link leads out of the folder. The one
    link that may lead out is that of Hugging Face's download cache, from a snapshot to a blob (`_is_cached_blob`).
    """
    if not isinstance(name, str) or not _is_plain_name(name):
        raise CorruptFolderError(f"{folder} refers to the file {shown(name)}: expected a file name without a folder")
    path = folder / name
    if not path.is_file():
        raise CorruptFolderError(f"{path} is missing: expected a file")
    if path.is_symlink() and folder.resolve() not in path.resolve().parents and not _is_cached_blob(path):
        raise CorruptFolderError(f"{path} is a link that leads out of its folder: expected a file")
    return path


def _is_cached_blob(link: Path) -> bool:
    """Return whether a link has exactly the form that Hugging Face's download cache uses.

    The cache stores the files of a repository as `blobs/HASH`. Each downloaded revision is a folder `snapshots/COMMIT`
    beside `blobs`, with links `../../blobs/HASH`, or `../../../blobs/HASH` in a folder inside it. Such a link is
    accepted only if it ends at a regular file of this very `blobs` folder.
    """
    target = re.fullmatch(r"\.\./(\.\./)?\.\./blobs/([0-9a-f]{40}|[0-9a-f]{64})", os.readlink(link))
    if target is None:
        return False
    snapshot = link.parent.resolve() if target[1] is None else link.parent.resolve().parent
    if snapshot.parent.name != "snapshots":
        return False
    blob = snapshot.parent.parent / "blobs" / target[2]
    return link.resolve() == blob and blob.is_file()


def _is_plain_name(name: str) -> bool:
    """Return whether `name` is a file name without any folder in front of it."""
    return Path(name).name == name and name not in ("", ".", "..")


def is_listed_name(name: object) -> bool:
    """Return whether a manifest may list a file under this name: a plain name, or one inside a plain folder."""
    return isinstance(name, str) and name.count("/") <= 1 and all(map(_is_plain_name, name.split("/")))


def verify_folder(folder: Path) -> SealedFolder:
    """Verify the checksum of every file in a folder's manifest, and return the folder for reading.

    Raises CorruptFolderError if the manifest or a file is missing or damaged.
    """
    sealed = SealedFolder(folder)
    sealed.verify()
    return sealed


def _read_manifest(file: Path) -> dict[str, str]:
    """Return the checksums in a manifest by file name. Raises CorruptFolderError if the manifest is malformed."""
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
        if not is_listed_name(name) or name == MANIFEST or not name.isprintable():
            raise CorruptFolderError(f"{file} names {shown(name)}: expected a plain file name")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise CorruptFolderError(
                f"{file} has the checksum {shown(digest)} for {shown(name)}: expected 64 hexadecimal digits"
            )
    return sums


def read_json(file: Path, *, strict: bool = True) -> Any:
    """Return the contents of a JSON file. `strict` refuses NaN, Infinity and duplicate keys.

    Raises CorruptFolderError naming the file if it is missing, not JSON, or larger than `MAX_JSON_BYTES`.
    """
    if not file.is_file():  # opening a pipe would block
        raise CorruptFolderError(f"{file} is missing: expected a file")
    try:
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CorruptFolderError(f"{file} has {size:,} bytes: expected at most {MAX_JSON_BYTES:,} of JSON")
        text = file.read_text(encoding="utf-8")
        if not strict:
            return json.loads(text)
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse, parse_float=_finite)
    except CorruptFolderError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFolderError(f"{file} cannot be read: {shortened(str(error), 300)}") from error


def read_json_object(file: Path, *, strict: bool = True) -> dict[str, Any]:
    """Return the contents of a JSON file, like `read_json`. Raises CorruptFolderError unless it holds an object."""
    values = read_json(file, strict=strict)
    if not isinstance(values, dict):
        raise CorruptFolderError(f"{file} holds {shown(values)}: expected a JSON object")
    return values


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {shown(name)} occurs twice: expected it once")
        found[name] = value
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"it holds {constant}: expected finite numbers")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(shown(text))
    return number


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file's contents in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(file: Path, text: str) -> None:
    """Write a text file atomically: after a crash it holds either the old or the new text."""
    with replacing(file) as work:
        work.write_text(text, encoding="utf-8")


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Context manager that yields a temporary path to write to, then renames it to `file`.

    If the block fails, an existing `file` stays as it was. An OSError while writing becomes a WriteError, which names
    `file` and the next step for the user, such as freeing disk space.
    """
    work = file.with_name(f".{file.name}.part")
    with naming_write_errors(file, work):
        try:
            yield work
            with work.open("rb") as stream:
                os.fsync(stream.fileno())
            work.replace(file)
        finally:
            with suppress(OSError):  # the original error is already being raised
                work.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that renames in it survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
