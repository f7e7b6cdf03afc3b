"""Write output folders atomically, and never over files that Glassformer did not write.

A folder is written under a temporary name, gets a manifest (the checksum of every file), and is renamed. To replace an
older folder on Linux and macOS, the two names are exchanged in one system call, so that the output's name always leads
to a complete folder. Where this is not supported, it takes two renames; `recover_folder` repairs a kill between them.

`safe_files.py` writes single files atomically.
"""

import ctypes
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.base.write_errors import naming_write_errors
from glassformer.checkpoint.safe_files import (
    MANIFEST,
    CorruptFolderError,
    is_listed_name,
    seal_folder,
    sha256,
    sync_folder,
    verify_folder,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MAX_NAME = 255
"""Maximum length of a file name in bytes, on most systems."""
SHOWN = 5
"""How many of the files that are not in the manifest an error names."""


class OutputExistsError(ValueError):
    """The output folder or file exists and may not be replaced."""


class FolderInUseError(ValueError):
    """Another process has locked the folder, or has just removed it."""


@contextmanager
def new_folder(path: Path, *, overwrite: bool = False, owner: str = "") -> Iterator[Path]:
    """Context manager that yields a temporary folder to write into, then writes its manifest and renames it to `path`.

    Raises OutputExistsError if `path` may not be replaced (see `check_output`); nothing is written in that case. If the
    block fails, the temporary folder is removed and `path` stays as it was. An OSError while writing becomes a
    WriteError, which names the file under `path` and the next step for the user, such as freeing disk space.
    """
    path = path.resolve()
    check_output(path, overwrite=overwrite, owner=owner)
    work = _temporary(path, secrets.token_hex(4))
    with naming_write_errors(path, work):
        path.parent.mkdir(parents=True, exist_ok=True)
        clean_leftovers(path)
        work.mkdir()
        with _hold(work):
            try:
                yield work
                seal_folder(work, owner=owner)
                check_output(path, overwrite=overwrite, owner=owner)  # files may have been added meanwhile
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
            _put_in_place(work, path)
        sync_folder(path.parent)


def check_output(path: Path, *, overwrite: bool = False, owner: str = "") -> None:
    """Raise OutputExistsError unless a folder may be written to `path`.

    This is allowed if `path` is missing, is an empty folder, or is a folder that the same `owner` (a training run)
    wrote and whose files are unchanged. With `overwrite` the owner may differ and files may have changed. A folder with
    files that its manifest does not list is never replaced.
    """
    if not path.name or len(os.fsencode(_temporary(path, "0" * 8).name)) > MAX_NAME:
        raise OutputExistsError(f"{path}: expected the name of a new folder, of at most {MAX_NAME - 20} bytes")
    if not path.exists():
        return
    if not path.is_dir():
        raise OutputExistsError(f"{path} is a file: expected the name of a new folder. Choose another name")
    if path.is_mount() or path.samefile(os.curdir):  # both prevent the final rename
        kind = "a mount point" if path.is_mount() else "the current folder"
        raise OutputExistsError(f"{path} is {kind}: expected the name of a new folder. Choose a name inside it")
    written_by, listed = _manifest(path)
    present = _present(path, listed)
    if not present:
        return
    if unlisted := sorted(present - listed - {MANIFEST}):
        names = ", ".join(unlisted[:SHOWN]) + (f" and {len(unlisted) - SHOWN} more" if len(unlisted) > SHOWN else "")
        raise OutputExistsError(
            f"{path} holds files that Glassformer did not write ({names}): they are never replaced. "
            "Choose another folder, or move them"
        )
    if not overwrite and (not owner or written_by != owner):
        whose = ", which this run did not write" if owner else ""
        raise OutputExistsError(
            f"{path} holds a model already{whose}. Use --overwrite to replace it, or choose another folder"
        )
    if not overwrite and (changed := _changed_file(path)):
        raise OutputExistsError(
            f"{changed} has changed since it was written. Use --overwrite to replace the model, or choose another "
            "folder"
        )


def check_output_file(path: Path, magic: bytes, *, overwrite: bool = False) -> None:
    """Raise OutputExistsError unless a file may be written to `path`.

    This is allowed if `path` is missing. With `overwrite` it is also allowed if the existing file starts with the bytes
    `magic`, that is, has the same format.
    """
    if not path.exists():
        return
    if not path.is_file():
        raise OutputExistsError(f"{path} is a folder: expected the name of a new file. Choose another name")
    with path.open("rb") as stream:
        is_same_format = stream.read(len(magic)) == magic
    if not is_same_format:
        raise OutputExistsError(
            f"{path} exists and is a file of another kind: it is never replaced. Choose another name"
        )
    if not overwrite:
        raise OutputExistsError(f"{path} exists. Use --overwrite to replace it, or choose another name")


def clean_leftovers(path: Path) -> None:
    """Remove the temporary folders that killed processes left next to `path` when they wrote it.

    If a process was killed after it had renamed `path`, `path` is first restored (see `recover_folder`). The temporary
    folders of running processes stay.
    """
    old = path.with_name(f".{path.name}.old")
    if old.is_dir():
        recover_folder(path)
        if path.exists() and old.exists():
            _remove_replaced(old, path)
    pattern = re.compile(re.escape(f".{path.name}.part-") + "[0-9a-f]{8}")
    leftovers = [file for file in path.parent.iterdir() if pattern.fullmatch(file.name) and file.is_dir()]
    for leftover in leftovers:
        try:
            with _hold(leftover):  # fails if its writer is still running
                if (leftover / MANIFEST).is_file() and path.is_dir():
                    _remove_replaced(leftover, path)
                else:
                    shutil.rmtree(leftover, ignore_errors=True)
        except FolderInUseError:
            continue


def recover_folder(path: Path) -> None:
    """Restore a missing folder `path` from the folder `.NAME.old` next to it, if that one is intact.

    NAME is the name of `path`. On systems that cannot exchange two names, `.NAME.old` remains if a process is killed
    between the two renames of `_put_in_place`.
    """
    if path.exists() or not path.name:
        return
    old = path.with_name(f".{path.name}.old")
    if not old.is_dir():
        return
    try:
        verify_folder(old)
    except CorruptFolderError:
        return
    old.rename(path)


def discard_folder(path: Path) -> None:
    """Remove a folder, such as a training checkpoint. It is renamed first, so that no reader finds half of it."""
    doomed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def lock_folder(folder: Path, name: str = "lock") -> Iterator[None]:
    """Context manager that locks `folder` for this process, through a lock file called `name` in the folder.

    Raises FolderInUseError if another process holds the lock. The operating system releases the lock when the process
    ends. On Windows nothing is locked.
    """
    file = folder / name
    with naming_write_errors(file):
        stream = file.open("a+", encoding="ascii")
    with stream:
        try:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            holder = stream.read(20).strip()
            process = f"process {holder}" if holder else "another process"
            raise FolderInUseError(
                f"{folder} is in use by {process}. Wait until it ends, or choose another folder"
            ) from None
        if not file.exists() or not os.path.samestat(os.fstat(stream.fileno()), file.stat()):
            raise FolderInUseError(f"{folder} was removed by another process that is ending. Run the command again")
        with naming_write_errors(file):
            stream.seek(0)
            stream.truncate()
            stream.write(f"{os.getpid()}\n")
            stream.flush()
        yield


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Context manager that locks a temporary folder without a lock file, which would become part of the output.

    `clean_leftovers` does not remove a locked folder. Raises FolderInUseError if another process holds the lock.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(f"{folder} is in use by another process") from None
        yield
    finally:
        os.close(descriptor)


def _temporary(path: Path, suffix: str) -> Path:
    """Return the temporary path under which the folder `path` is written. `suffix` makes it unique."""
    return path.with_name(f".{path.name}.part-{suffix}") if path.name else path


def _changed_file(folder: Path) -> Path | None:
    """Return the first file that differs from its checksum in the folder's manifest, or None."""
    digests = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["sha256"]
    return next((folder / name for name in sorted(digests) if sha256(folder / name) != digests[name]), None)


def _present(path: Path, listed: set[str]) -> set[str]:
    """Return the names of the files and folders in a folder; for a folder with listed files, the names inside it."""
    inner = {name.partition("/")[0] for name in listed if "/" in name}
    found: set[str] = set()
    for file in path.iterdir():
        is_inner = file.name in inner and file.is_dir() and not file.is_symlink()
        found |= {f"{file.name}/{one.name}" for one in file.iterdir()} if is_inner else {file.name}
    return found


def _manifest(folder: Path) -> tuple[str, set[str]]:
    """Return the owner and the file names in a folder's manifest; "" and an empty set if it cannot be read."""
    try:
        values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return str(values.get("owner", "")), {name for name in values["sha256"] if is_listed_name(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", set()


def _put_in_place(work: Path, path: Path) -> None:
    if not path.exists() or not any(path.iterdir()):
        work.rename(path)  # rename replaces an empty folder
    elif _exchange(work, path):
        _remove_replaced(work, path)
    else:
        old = path.with_name(f".{path.name}.old")
        path.rename(old)
        work.rename(path)
        _remove_replaced(old, path)


def _remove_replaced(old: Path, new: Path) -> None:
    """Remove the folder `old`, which the folder `new` has replaced.

    Files that the manifest of `old` does not list are moved to `new`. If `new` has a file of the same name, `old` is
    not removed.
    """
    _, listed = _manifest(old)
    for name in _present(old, listed) - listed - {MANIFEST}:
        if (new / name).exists() or not (new / name).parent.is_dir():
            return  # the name is taken: keep the old folder
        (old / name).rename(new / name)
    for name in _present(old, listed) & listed:
        if (old / name).is_file():
            (old / name).unlink()
    for folder in {name.partition("/")[0] for name in listed if "/" in name}:
        if (old / folder).is_dir() and not (old / folder).is_symlink():
            (old / folder).rmdir()
    (old / MANIFEST).unlink(missing_ok=True)
    old.rmdir()


def _exchange(one: Path, two: Path) -> bool:
    """Exchange the names of two folders in one system call. Return False if that failed or is not supported."""
    library = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    first, second = os.fsencode(one), os.fsencode(two)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        rename_swap = 2
        return library.renamex_np(first, second, rename_swap) == 0  # type: ignore[union-attr]
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        at_fdcwd, rename_exchange = -100, 2
        return library.renameat2(at_fdcwd, first, at_fdcwd, second, rename_exchange) == 0  # type: ignore[union-attr]
    return False
