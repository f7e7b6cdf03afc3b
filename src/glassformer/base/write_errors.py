"""Errors about files that cannot be written. Each one names the file, the reason and the next step."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SPACE = "Free some space there, or choose a folder on another disk"
_DENIED = "Choose a folder that you may write to"
NEXT_STEPS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), or choose a folder on another disk",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.EEXIST: "Choose another name",
    errno.ENOTDIR: "Choose a name whose parents are folders",
    errno.ENOENT: "Choose a folder that exists",
    errno.ENAMETOOLONG: "Choose a shorter name",
}


class WriteError(OSError):
    """A file or folder could not be written. The message names it, the reason and the next step.

    `number` is the `errno` of the original error, which selects the next step. `advice` replaces that step.
    """

    def __init__(self, path: Path, reason: str, number: int | None, advice: str = ""):
        advice = advice or NEXT_STEPS.get(number or 0, "Choose another folder")
        super().__init__(f"could not write {path}: {reason}. {advice}")
        self.path, self.reason, self.errno, self.advice = path, reason, number, advice


@contextmanager
def naming_write_errors(path: Path, work: Path | None = None, *, advice: str = "") -> Iterator[None]:
    """Context manager: convert an OSError inside the block to a WriteError, which names the file and the next step.

    Errors about files outside `path` and `work`, and broken pipes, are not converted.

    Args:
        path: The file or folder that is written. Also named if the OSError has no file name, as for an open file.
        work: Temporary file or folder that is later renamed to `path`. Errors about it name `path` instead.
        advice: Next step to name in the error, instead of the usual one for its `errno`.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        known = error.path if isinstance(error, WriteError) else error.filename
        place = path if known is None else _final(known, path, work)
        if place is None:
            raise
        reason = error.reason if isinstance(error, WriteError) else error.strerror or str(error)
        raise WriteError(place, reason, error.errno, advice) from error


def _final(known: object, path: Path, work: Path | None) -> Path | None:
    """Return the path that the error should name for `known`, the file name of the original error.

    A path inside `work` becomes the one inside `path`. Returns None unless the file is inside `path` or `work`, or is a
    parent of `path`.
    """
    if not isinstance(known, str | bytes | os.PathLike):
        return None
    file = Path(os.fsdecode(known))
    if work is not None and file.is_relative_to(work):
        return path / file.relative_to(work)
    if file.is_relative_to(path) or path.is_relative_to(file):
        return file
    return None
