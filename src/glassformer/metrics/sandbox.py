"""Run untrusted Python programs without privileges, without network, and with limited time and memory.

A program runs as an unprivileged user (root switches to one). It can use no files except Python's library and an empty
folder, it has no network, and it can neither start nor signal other processes. If this machine cannot enforce one of
these protections, the mode `sandbox="strict"` (the default) refuses to run the program; `sandbox="weak"` runs it with
the others. `check_sandbox` reports which are in force. Time, memory and files are always limited.

A program and its tests share one interpreter. A program cannot pass by exiting early, by reading files, arguments or
the environment, or by replacing functions. A program written to cheat still can: its values may compare equal to
everything, or it may search the calling frames for the secret token that reports success. pass@k assumes programs that
try to be correct. Against attacks on the kernel use a virtual machine that holds no data.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple, get_args

SHOWN = 20_000
"""Maximum number of bytes of a program's output that are kept: the last ones."""
GRACE = 90.0
"""Seconds that the supervisor gets in addition to the program's time limit, to prepare and end the program."""

SandboxMode = Literal["strict", "weak"]
"""`strict` refuses to run if protections are missing; `weak` runs with those that are available."""

_CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True)
class SandboxLimits:
    """Resource limits of one sandboxed program."""

    seconds: float = 5.0
    """Maximum wall time in seconds. Processor time is limited to one second more."""
    memory: int = 512 << 20
    """Maximum address space in bytes (`RLIMIT_AS`)."""
    file_size: int = 1 << 20
    """Maximum size of one file in bytes, output included."""
    total_size: int = 16 << 20
    """Maximum size of all files together in bytes."""


@dataclass(frozen=True)
class Protections:
    """The sandbox's protections on this machine, each as a short description to show to users."""

    active: tuple[str, ...]
    """Protections in force."""
    missing: tuple[str, ...] = ()
    """Missing protections. Empty if the sandbox is strong enough for untrusted programs."""

    def __str__(self) -> str:
        missing = f"; MISSING: {'; '.join(self.missing)}" if self.missing else ""
        return f"sandbox: {'; '.join(self.active) or 'no protection'}{missing}"


class WeakSandboxError(ValueError):
    """This machine lacks a protection that the sandbox mode `strict` requires."""


class Outcome(NamedTuple):
    """The result of running a program in the sandbox."""

    code: int
    """Exit code; 128 plus the number of the signal that ended the program; -9 if it exceeded its time or space."""
    output: str
    """The last SHOWN bytes that the program wrote to stdout and stderr."""
    timed_out: bool
    """Whether the program was ended because its time was up."""
    passed: bool = False
    """Whether its tests ran to the end without an error. False for a program without tests."""


def run_program(source: str, limits: SandboxLimits | None = None, sandbox: SandboxMode = "strict") -> Outcome:
    """Run a Python program in the sandbox until it ends or its time is up, and return its exit code and output."""
    return _run(source, None, limits or SandboxLimits(), sandbox)[0]


def run_tests(
    program: str, tests: str, limits: SandboxLimits | None = None, sandbox: SandboxMode = "strict"
) -> Outcome:
    """Import a program in the sandbox, run the tests in its namespace, and return whether they passed, with the output.

    Because the program is imported, its code under `if __name__ == "__main__"` does not run.
    """
    return _run(program, tests, limits or SandboxLimits(), sandbox)[0]


def check_sandbox(sandbox: SandboxMode = "strict", limits: SandboxLimits | None = None) -> Protections:
    """Run an empty program and return the protections in force on this machine.

    Raises WeakSandboxError if they are not enough for the mode `sandbox`.
    """
    _, protections = _run("", None, limits or SandboxLimits(), "weak")
    _refuse_if_weak(protections, sandbox)
    return protections


def _run(
    program: str, tests: str | None, limits: SandboxLimits, sandbox: SandboxMode, without: Sequence[str] = ()
) -> tuple[Outcome, Protections]:
    """Run a program, and its tests unless they are None. Returns the result and the protections that were in force.

    `without` names protections to disable, so that this project's tests can check the remaining ones.
    """
    if sandbox not in get_args(SandboxMode):
        raise ValueError(f"sandbox={sandbox!r}: expected strict or weak")
    if os.name != "posix":
        raise WeakSandboxError(f"untrusted programs cannot be restricted on {sys.platform}: run them on Linux")
    token = secrets.token_hex(16)
    job = {
        "program": program,
        "tests": tests,
        "token": token,
        "mode": sandbox,
        "without": list(without),
        "seconds": limits.seconds,
        "memory": limits.memory,
        "file_size": limits.file_size,
        "total_size": limits.total_size,
    }
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="glassformer-", ignore_cleanup_errors=True))
        # Unnamed files, which the program can neither find nor leave behind.
        job_file = stack.enter_context(tempfile.TemporaryFile())
        output = stack.enter_context(tempfile.TemporaryFile())
        job_file.write(json.dumps(job).encode())
        job_file.seek(0)
        status, report = _supervised(folder, job_file, output, limits)
        output.seek(0, os.SEEK_END)
        output.seek(max(0, output.tell() - SHOWN))
        text = output.read(SHOWN).decode("utf-8", "replace")
    first, _, rest = report.partition(b"\n")
    if not status or not first:
        raise RuntimeError(f"the sandbox ended before the program began: {text.strip()[-500:] or 'no output'}")
    protections = Protections(**{name: tuple(found) for name, found in json.loads(first).items()})
    _refuse_if_weak(protections, sandbox)
    ended = json.loads(status)
    if ended["reason"] == "size":
        text += f"\n[ended: it wrote more than {limits.total_size} bytes]\n"
    passed = ended["code"] == 0 and not ended["reason"] and rest == token.encode()
    return Outcome(ended["code"], text, ended["reason"] == "time", passed), protections


def _supervised(folder: str, job: IO[bytes], output: IO[bytes], limits: SandboxLimits) -> tuple[bytes, bytes]:
    """Run the supervisor (`sandbox_child.py`) in `folder` and return the contents of the status and report pipes.

    The supervisor writes to the status pipe how the program ended. The program writes to the report pipe which
    protections are in force and, after its last test, the secret token.
    """
    pipes = [*os.pipe(), *os.pipe()]
    process: subprocess.Popen[bytes] | None = None
    try:
        for pipe in pipes[::2]:
            os.set_blocking(pipe, False)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_CHILD), str(job.fileno()), str(pipes[1]), str(pipes[3])],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(job.fileno(), pipes[1], pipes[3]),
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limits.seconds + GRACE)
        return _drain(pipes[0]), _drain(pipes[2])
    finally:
        if process is not None:
            _end(process)
        for pipe in pipes:
            os.close(pipe)


def _drain(pipe: int) -> bytes:
    try:
        return os.read(pipe, 1 << 16)
    except BlockingIOError:
        return b""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """If the supervisor still runs, ask it to end its processes, and kill it if it has not ended after ten seconds."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _refuse_if_weak(protections: Protections, sandbox: SandboxMode) -> None:
    if protections.missing and sandbox == "strict":
        raise WeakSandboxError(
            f"the sandbox is too weak on this machine for untrusted programs. Missing: {'; '.join(protections.missing)}"
            '. Use another machine, or --sandbox weak (sandbox="weak" in Python) to run them all the same'
        )
