"""The resident memory of this process, now and at its peak, as the operating system reports it."""

import re
import sys
from pathlib import Path

from glassformer.base.freed_memory import give_back_freed


def forget_peak() -> None:
    """Reset the peak resident memory of this process to its current use, if the system supports it.

    Linux does, but not in every container. Elsewhere nothing happens.
    """
    try:
        Path("/proc/self/clear_refs").write_bytes(b"5")
    except OSError:
        return


def peak_resident() -> int | None:
    """Return the peak resident memory of this process in bytes; None if the system does not report it (Windows)."""
    found = _status("VmHWM")
    if found is not None:
        return found
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident() -> int | None:
    """Return the current resident memory of this process in bytes; None except on Linux."""
    return _status("VmRSS")


def _status(name: str) -> int | None:
    """Return the field `name` of /proc/self/status, such as VmRSS, in bytes; None if the kernel does not provide it."""
    try:
        text = Path("/proc/self/status").read_bytes()  # bytes: the name of a program may be in any encoding
    except OSError:
        return None
    found = re.search(rb"^%s:\s+(\d+) kB" % name.encode("ascii"), text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


class ResidentGrowth:
    """Measures how much the resident memory of this process has grown since the object was created.

    The constructor returns freed memory to the operating system, if possible. Otherwise the process would reuse that
    memory, and the measured growth would be too small.
    """

    def __init__(self) -> None:
        give_back_freed()
        forget_peak()
        # If the system cannot reset the peak, this is the peak before the measurement, above the current use.
        self._older_peak = peak_resident() or 0
        self.before = resident() or self._older_peak or None

    def peak(self) -> int | None:
        """Return the peak so far minus the memory at the start, in bytes.

        It is None if the system does not report it, or if the process had a higher peak before, which hides this one.
        """
        now = peak_resident()
        return None if now is None or self.before is None or now <= self._older_peak else now - self.before
