"""How much memory this process has had at its peak, as the system tells it."""

import re
import sys
from pathlib import Path


def forget_peak() -> None:
    """Let the peak begin anew, where the system can: on Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_resident() -> int | None:
    """The most bytes of memory this process has had; None where the system does not say (Windows)."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    except OSError:
        found = None
    if found:
        return int(found.group(1)) * 1024
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
