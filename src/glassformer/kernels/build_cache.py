"""Compiled libraries of C++ kernels in the cache folder: built once, and checked against a checksum before each use.

Several processes may want the same library at once, and any of them may be killed while it builds. A library's file
name holds its checksum, so that a damaged file is noticed and built again. The process that builds holds a lock.

Loading a library runs its code. So a folder or file that another user owns or may write is not used.
"""

import contextlib
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from glassformer.cache_folder import cache_folder

Build = Callable[[Path], None]
"""A function that builds a library at the given path. It may put temporary files into the same folder."""
DAY = 24 * 3600
_LOG = logging.getLogger(__name__)


@contextmanager
def built_library(name: str, build: Build) -> Iterator[Path]:
    """Return a context manager that yields the path of the library `name`, and calls `build` if it is not cached.

    The cache folder is not used if it cannot be written, if others may write it, or if its libraries cannot be loaded.
    The library is then built into a temporary folder that is removed after the block, and the reason is logged.
    """
    try:
        folder = cache_folder() / "kernels"
        _make_private(folder)
        _check_loadable(folder)
        _remove_left_overs(folder)
        found = find_library(folder, name) or _build_into(folder, name, build)
    except OSError as error:
        reason = error
    else:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="glassformer-kernels-") as work:
        _check_loadable(Path(work))
        build(Path(work) / f"{name}.so")
        yield Path(work) / f"{name}.so"
    _LOG.warning(  # after the block, because the caller reports an error of the block
        "the compiled kernels are not cached (%s): they were compiled for this process alone, which takes time; "
        "if you cannot change that, set GLASSFORMER_CACHE to another folder, which only you may write",
        reason,
    )


def why_not_cached() -> str | None:
    """Return why a built library would not be kept in the cache folder; None if it would be. It creates nothing."""
    folder = cache_folder() / "kernels"
    try:
        if folder.exists():
            _check_private(folder)
            _check_loadable(folder)
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    except OSError as error:
        return str(error)
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    return None if os.access(nearest, os.W_OK) else f"{nearest} cannot be written"


def _make_private(folder: Path) -> None:
    """Create the folder so that only this user may write it. Raises OSError if it exists and others may write it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_private(folder)


def _check_private(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {found.st_uid}, not to you: remove or rename it")
    if _others_may_write(found):
        mode = stat.S_IMODE(found.st_mode)
        raise PermissionError(f"other users may write {folder}, which has mode {mode:o}: run chmod 700 {folder}")


def _others_may_write(found: os.stat_result) -> bool:
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _check_loadable(folder: Path) -> None:
    """Raise OSError if the folder's file system is mounted with `noexec`, so that no library in it can be loaded."""
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise PermissionError(f"{folder} is on a file system that is mounted with noexec")


def find_library(folder: Path, name: str) -> Path | None:
    """Return the library `name` in a folder, or None if there is none that is ours and has the checksum of its name."""
    for file in sorted(folder.glob(f"{name}-*.so")):
        with contextlib.suppress(OSError):
            if _is_ours(file) and file.name == _sealed_name(name, file):
                return file
    return None


def _is_ours(file: Path) -> bool:
    """Return whether this is a regular file, no link, that this user owns and other users may not write."""
    found = file.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not _others_may_write(found)


def _build_into(folder: Path, name: str, build: Build) -> Path:
    with _locked(folder / f"{name}.lock"):
        found = find_library(folder, name)  # another process may have been faster
        if found is not None:
            return found
        for damaged in folder.glob(f"{name}-*.so"):
            damaged.unlink()
        with tempfile.TemporaryDirectory(prefix=f"build-{name}-", dir=folder) as work:
            built = Path(work) / f"{name}.so"
            build(built)
            built.chmod(0o700)
            library = folder / _sealed_name(name, built)
            built.replace(library)
    return library


def _sealed_name(name: str, file: Path) -> str:
    with file.open("rb") as stream:
        return f"{name}-{hashlib.file_digest(stream, 'sha256').hexdigest()[:32]}.so"


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Return a context manager that locks the file `path` and yields True.

    If `wait` is False and another process holds the lock, it yields False. The operating system releases the lock of a
    process that ends, however it ends.
    """
    import fcntl

    with path.open("a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks: renaming keeps the libraries whole there too
            yield wait
            return
        yield True


def _remove_left_overs(folder: Path) -> None:
    """Remove the build folders that killed processes have left in the cache folder.

    Only the holder of the lock `NAME.lock` uses a folder `build-NAME-...`. Older versions of Glassformer named their
    build folders `tmp...`: those are removed after a day, if they contain nothing but a library.
    """
    for path in [*folder.glob("build-*-????????"), *folder.glob("tmp????????")]:
        with contextlib.suppress(OSError):  # another process removes the same, or we may not write here
            if not path.is_symlink() and path.is_dir():
                _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    if match := re.fullmatch(r"build-(.+)-\w{8}", path.name):
        with _locked(path.with_name(f"{match.group(1)}.lock"), wait=False) as is_held:
            if is_held:
                shutil.rmtree(path, ignore_errors=True)
        return
    is_old = time.time() - path.stat().st_mtime > DAY
    if is_old and all(re.fullmatch(r"cpu-[0-9a-f]{16}\.so", file.name) for file in path.iterdir()):
        shutil.rmtree(path, ignore_errors=True)
