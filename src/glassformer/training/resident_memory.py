"""The resident memory of this process, now and at its peak, as the operating system reports it."""

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path


def forget_peak() -> None:
    """Let the peak begin anew at what is in use now, where the system can: on Linux, and not in every container."""
    try:
        Path("/proc/self/clear_refs").write_bytes(b"5")
    except OSError:
        return


def peak_resident() -> int | None:
    """The most bytes of memory this process has had; None where the system does not say (Windows)."""
    found = _status("VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident() -> int | None:
    """The bytes of memory this process has now; None where the system does not say (other than Linux)."""
    return _status("VmRSS")


def _status(name: str) -> int | None:
    """A size from the kernel's own account of this process. Not every kernel that calls itself Linux gives each."""
    try:
        text = Path("/proc/self/status").read_bytes()  # bytes: the name of a program may be in any encoding
    except OSError:
        return None
    found = re.search(rb"^%s:\s+(\d+) kB" % name.encode("ascii"), text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def give_back_freed() -> None:
    """Return to the system what the C library holds back of freed memory, where it can.

    Memory that is used again from there adds nothing to the peak, so that a run after others in one process would seem
    to take less.
    """
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
