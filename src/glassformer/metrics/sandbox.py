"""Run untrusted Python programs in a process without rights, without network and with little time.

The kernel must provide enough for that: an unprivileged user (root becomes one), no files but Python's library and an
empty folder, no network, no other processes to start or to signal. Where something is missing, nothing is run, unless
the caller asks for `sandbox="weak"`. `check_sandbox` tells what is in force. Time, memory and files are always limited.

A program and its tests share one interpreter. A program does not pass by ending early, by reading files, arguments or
the environment, or by replacing functions. A program written to cheat still can: its values can compare equal to
everything, or it can search the calling frames for the token. pass@k assumes programs that try to be right. Against
attacks on the kernel itself use a virtual machine that holds no data.
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
"""Bytes of output that are kept."""
GRACE = 90.0
"""Seconds besides a program's time in which the supervisor must have prepared and ended it."""

SandboxMode = Literal["strict", "weak"]
"""`strict` refuses to run anything where protections are missing; `weak` runs it with those that there are."""

_CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 5.0
    """By the clock; processor time is limited to one second more."""
    memory: int = 512 << 20
    """Bytes."""
    file_size: int = 1 << 20
    """Bytes of any file it writes, output included."""
    total_size: int = 16 << 20
    """Bytes of all files it writes together."""


@dataclass(frozen=True)
class Protections:
    """The protections that programs run under on this machine."""

    active: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Empty where the sandbox is strong enough for untrusted programs."""

    def __str__(self) -> str:
        missing = f"; MISSING: {'; '.join(self.missing)}" if self.missing else ""
        return f"sandbox: {'; '.join(self.active) or 'no protection'}{missing}"


class WeakSandboxError(ValueError):
    """This machine cannot restrict an untrusted program."""


class Outcome(NamedTuple):
    """How a program ended."""

    code: int
    """Its exit code; 128 and a signal's number where that ended it; -9 where its time or its space was up."""
    output: str
    """What it printed, errors too."""
    timed_out: bool
    passed: bool = False
    """Whether its tests ran to their end."""


def run_program(source: str, limits: Limits | None = None, sandbox: SandboxMode = "strict") -> Outcome:
    """Run a Python program to its end, or to the end of its time."""
    return _run(source, None, limits or Limits(), sandbox)[0]


def run_tests(program: str, tests: str, limits: Limits | None = None, sandbox: SandboxMode = "strict") -> Outcome:
    """Import a program as a module, so that nothing under `__main__` runs, then run tests in its namespace."""
    return _run(program, tests, limits or Limits(), sandbox)[0]


def check_sandbox(sandbox: SandboxMode = "strict", limits: Limits | None = None) -> Protections:
    """The protections that programs run under here. Raises WeakSandboxError where they are not enough for `sandbox`."""
    _, protections = _run("", None, limits or Limits(), "weak")
    _refuse_if_weak(protections, sandbox)
    return protections


def _run(
    program: str, tests: str | None, limits: Limits, sandbox: SandboxMode, without: Sequence[str] = ()
) -> tuple[Outcome, Protections]:
    """Run a program; `without` names protections to leave out, so that tests can try those that are left."""
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
        # Files without names: the program can neither find them nor leave them behind.
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


def _supervised(folder: str, job: IO[bytes], output: IO[bytes], limits: Limits) -> tuple[bytes, bytes]:
    """Run the supervisor to its end. Returns what it and the program wrote to their pipes."""
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
    """Ask the supervisor to end what it has started, where it has not ended by itself; then end it."""
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
