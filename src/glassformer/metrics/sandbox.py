"""Programs that nobody has read, run in a process of their own with little to harm and little time to do it.

Python starts isolated (`-I -S`) in a fresh folder: no environment, no input, limits on time, memory, the size of files
and the number of processes, in a session of its own that is killed as a whole. On Linux nothing outside the folder can
be written (Landlock) and, where the system lets us, there is no network and no other process; root becomes nobody
where nobody can read Python. It is a fence against accidents and clumsy programs. For programs of an enemy use a
machine that holds nothing.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SHOWN = 20_000
"""Bytes of output that are kept."""
NOBODY = 65534


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 5.0
    """By the clock; the processor's time is limited to as much and a little more."""
    memory: int = 512 << 20
    """Bytes."""
    file_size: int = 1 << 20
    """Bytes of any file it writes, output included."""


class Outcome(NamedTuple):
    """How a program ended."""

    code: int
    """Its exit code; where a signal ended it 128 and its number, or where its time was up -9."""
    output: str
    """What it printed, errors too."""
    timed_out: bool


# Runs in the child before the program, so that nothing needs to run between fork and exec in a process with threads.
FENCE = """
import ctypes, os, resource, sys
seconds, memory, size, user = (int(x) for x in sys.argv[1:5])
def limit(name, value):
    kind = getattr(resource, name, None)
    if kind is not None:
        resource.setrlimit(kind, (value, value))
if user and os.geteuid() == 0:
    os.setgroups([]); os.setgid(user); os.setuid(user)
if sys.platform == "linux":
    libc = ctypes.CDLL(None, use_errno=True)
    # A user, a network and a family of processes of its own, which ends with its first one; it may be refused.
    if libc.unshare(0x10000000 | 0x40000000 | 0x20000000) == 0:
        child = os.fork()
        if child:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os._exit(status if status >= 0 else 128 - status)
        libc.prctl(1, 9, 0, 0, 0)  # it ends with whoever waits for it, whatever session it makes for itself
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges, which Landlock asks for
    writes = sum(1 << bit for bit in (1, *range(4, 13)))  # write, remove and make files of every kind
    class Rules(ctypes.Structure):
        _fields_ = [("handled", ctypes.c_uint64)]
    class Beneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]
    rules = libc.syscall(444, ctypes.byref(Rules(writes)), ctypes.c_size_t(8), 0)
    if rules >= 0:
        for path in (".", "/dev/null"):
            kept = writes if path == "." else 2
            place = os.open(path, getattr(os, "O_PATH", 0))
            libc.syscall(445, rules, 1, ctypes.byref(Beneath(kept, place)), 0)
            os.close(place)
        libc.syscall(446, rules, 0)
        os.close(rules)
limit("RLIMIT_CORE", 0)
limit("RLIMIT_CPU", seconds)
limit("RLIMIT_AS", memory)
limit("RLIMIT_FSIZE", size)
limit("RLIMIT_NOFILE", 64)
limit("RLIMIT_NPROC", 0)
os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", "program.py"])
"""


def run_program(source: str, limits: Limits | None = None) -> Outcome:
    """Run a Python program to its end, or to the end of its time."""
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="glassformer-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Bytes that are no text (a lone surrogate) are the program's own syntax error.
        (folder / "program.py").write_bytes(source.encode("utf-8", "surrogatepass"))
        user = NOBODY if os.geteuid() == 0 and _anybody_has_python() and _can_be_left(folder) else 0
        numbers = (max(1, round(limits.seconds + 1)), limits.memory, limits.file_size, user)
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", FENCE, *map(str, numbers)],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
            )
            timed_out = False
            try:
                code = process.wait(limits.seconds)
            except subprocess.TimeoutExpired:
                timed_out = True
                code = -signal.SIGKILL
            finally:
                _kill_group(process)
        told = (folder / "output").read_bytes()
        return Outcome(code, told[-SHOWN:].decode("utf-8", "replace"), timed_out)


def _anybody_has_python() -> bool:
    paths = [Path(sys.executable), Path(sys.executable).resolve(), Path(sys.base_prefix).resolve() / "lib"]
    return all(parent.stat().st_mode & 0o001 for path in paths for parent in (path, *path.parents) if parent.exists())


def _can_be_left(folder: Path) -> bool:
    """Hand the folder to nobody, who can then work in it; False where not even root may."""
    try:
        for path in (folder, *folder.iterdir()):
            os.chown(path, NOBODY, NOBODY)
    except OSError:
        return False
    return True


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End the program and whatever it has started."""
    for _ in range(3):  # what is being forked meanwhile is met the next time
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            break
        time.sleep(0.005)
    process.wait()
