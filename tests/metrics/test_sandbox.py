"""Untrusted programs: which actions are refused, and when they are not run at all."""

import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from glassformer.metrics import sandbox
from glassformer.metrics.sandbox import Protections, SandboxLimits, WeakSandboxError, check_sandbox, run_program

LIMITS = SandboxLimits(seconds=20)
ALL = ("user", "pid", "net", "ipc", "mount", "landlock", "seccomp", "nobody")
"""Protections that a run can leave out, to test those that are left."""
SOME = [(), ("mount",), ("landlock",), ("pid", "net", "ipc", "mount"), ("pid", "landlock"), ("seccomp",), ALL]

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these protections")


@pytest.fixture(scope="module")
def strict():
    """Skip where this machine is too weak for untrusted programs."""
    try:
        return check_sandbox()
    except WeakSandboxError as error:
        pytest.skip(str(error))


@pytest.fixture
def open_folder():
    """A folder that every user may read and write; those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def run(source, limits=LIMITS, without=()):
    return sandbox._run(source, None, limits, "weak", without)


def weak(source, limits=LIMITS):
    return run_program(source, limits, "weak")


def test_a_program_has_an_exit_code_and_output():
    assert weak("print('hello')") == (0, "hello\n", False, False)
    assert weak("raise SystemExit(7)").code == 7
    failed = weak("def f():\n    1 / 0\nf()")
    assert failed.code == 1
    assert "ZeroDivisionError" in failed.output
    assert failed.output.count("File") == 2  # no frames of ours
    assert weak("input()").code == 1  # its input is empty
    assert weak("print('\ud800')").code != 0
    assert weak("if __name__ == '__main__': print('main')").output == "main\n"
    assert weak("import atexit; atexit.register(print, 'end')").output == "end\n"
    assert weak("import ctypes; ctypes.string_at(0)").code == 128 + 11


def test_environment_and_packages_of_the_caller_are_hidden(monkeypatch):
    monkeypatch.setenv("SECRET", "secret")
    program = "import os, sys; print(os.environ.get('SECRET'), os.listdir('.'), sys.flags.isolated, sys.argv)"
    assert weak(program).output == "None [] 1 ['program.py']\n"
    assert weak("import torch").code == 1


def test_the_standard_library_works(strict):
    names = "asyncio, ctypes, datetime, decimal, hashlib, json, random, re, statistics, tempfile, zoneinfo"
    program = f"import {names}\nasyncio.run(asyncio.sleep(0))\nopen('a', 'w').write('x')\nprint(open('a').read())"
    assert run_program(program, LIMITS) == (0, "x\n", False, False)


def test_time_is_limited():
    outcome = weak("while True: pass", SandboxLimits(seconds=0.5))
    assert outcome.timed_out
    assert outcome.code == -9
    assert weak("import time; time.sleep(60)", SandboxLimits(seconds=0.5)).timed_out


def test_a_programs_time_begins_with_the_program():
    """The preparations take longer than this, and longer still on a busy machine."""
    assert weak("", SandboxLimits(seconds=0.001)).code in (0, -9)
    with pytest.raises(WeakSandboxError):
        sandbox._run("", None, SandboxLimits(seconds=0.001), "strict", ALL)


@linux
def test_memory_and_files_are_limited():
    assert "MemoryError" in weak("x = bytearray(1 << 33)").output
    assert weak("open('big', 'wb').write(bytes(1 << 24))").code != 0
    assert len(weak("while True: print('x' * 1000)").output) <= 20_000


@linux
@pytest.mark.parametrize("without", [(), ("mount",)])
def test_the_bytes_of_all_files_together_are_limited(without):
    """By a tmpfs or, without one, by polling the size of the folder."""
    program = """
import time
for number in range(40): open(str(number), "wb").write(bytes(1 << 18))
time.sleep(60)
"""
    outcome, protections = run(program, SandboxLimits(seconds=40, total_size=1 << 21), without)
    assert outcome.code != 0
    assert not outcome.timed_out
    means = "tmpfs" if "(tmpfs)" in str(protections) else "watched"
    assert {"tmpfs": "No space left", "watched": "[ended: it wrote more than 2097152 bytes]"}[means] in outcome.output
    assert means == "watched" or not without


ATTEMPTS = """
import json, os, socket
def refused(attempt):
    try: attempt()
    except OSError: return True
    return False
def fork():
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
print(json.dumps({{
    "no files": refused(lambda: open({mine!r})) and refused(lambda: open({mine!r}, "a"))
        and refused(lambda: os.listdir({folder!r})) and refused(lambda: open({folder!r} + "/new", "w")),
    "no network": refused(lambda: socket.create_connection(("127.0.0.1", {port}), 1)),
    "no signals": refused(lambda: os.kill({process}, 0)),
    "no further": refused(fork),
    "unprivileged": os.getuid() != 0,
}}))
"""


@linux
@pytest.mark.parametrize("without", SOME, ids=lambda names: "-".join(names) or "nothing")
def test_reported_protections_are_in_force(open_folder, without):
    """Each protection that is named as active refuses an attempt that would succeed without it."""
    mine = open_folder / "mine"
    mine.write_text("mine", encoding="utf-8")
    os.chmod(mine, 0o666)
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = ATTEMPTS.format(
            mine=str(mine), folder=str(open_folder), port=server.getsockname()[1], process=os.getpid()
        )
        outcome, protections = run(program, LIMITS, without)
    assert outcome.code == 0, outcome.output
    refused = json.loads(outcome.output)
    for title, was_refused in refused.items():
        assert was_refused or not any(name.startswith(title) for name in protections.active), title
    if without == ALL:
        assert not refused["no files"]  # the attempts succeed where nothing refuses them
        assert not refused["no network"]
    else:
        assert mine.read_text(encoding="utf-8") == "mine"
    if not protections.missing:
        assert all(refused.values())


@linux
def test_system_files_cannot_be_read(strict):
    for path in ("/etc/shadow", "/etc/passwd", "/proc/self/environ", os.path.abspath(__file__)):
        assert run_program(f"open({path!r})", LIMITS).code == 1
    assert run_program("import os; os.execv('/bin/sh', ['sh'])", LIMITS).code == 1


LIVES_ON = """
import ctypes, os, time
libc = ctypes.CDLL(None)
for _ in range(3):
    try: child = os.fork()
    except OSError: break
    if child == 0:
        libc.prctl(1, 0, 0, 0, 0)  # not to end with its parent
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            time.sleep(300)
        os._exit(0)
libc.prctl(1, 0, 0, 0, 0)
try: os.setsid()
except OSError: pass
{then}
"""


@linux
@pytest.mark.parametrize("then", ["time.sleep(300)", "print('done')"], ids=["its time is up", "it ends"])
@pytest.mark.parametrize("without", [(), ("mount", "nobody"), ALL], ids=["nothing", "mount", "all"])
def test_nothing_outlives_a_program(without, then):
    def running():
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"sandbox_child.py" in path.read_bytes():
                    found.add(path.parent.name)
            except OSError:
                continue
        return found

    before = running()
    outcome, _ = run(LIVES_ON.format(then=then), SandboxLimits(seconds=1 if "sleep" in then else 20), without)
    assert outcome.timed_out == ("sleep" in then)
    left = running() - before
    for _ in range(600):  # programs of other tests may be among them: those end by themselves
        if not left & running():
            break
        time.sleep(0.1)
    assert not left & running()


def test_a_sandbox_that_is_too_weak_is_refused_by_name():
    with pytest.raises(WeakSandboxError, match=r"Missing: .*no files .*Landlock.*no network.*--sandbox weak"):
        sandbox._run("print('ran')", None, LIMITS, "strict", ALL)
    outcome, protections = run("print('ran')", LIMITS, ALL)
    assert outcome.output == "ran\n"
    assert protections.missing
    assert "; MISSING: " in str(protections)
    with pytest.raises(ValueError, match="sandbox='loose': expected strict or weak"):
        run_program("", LIMITS, "loose")


def test_a_refused_program_does_not_run(open_folder):
    """Not even for a moment: the check comes before the program."""
    trace = open_folder / "trace"
    program = f"open({str(trace)!r}, 'w')"
    with pytest.raises(WeakSandboxError):
        sandbox._run(program, None, LIMITS, "strict", ALL)
    assert not trace.exists()


def test_check_sandbox_reports_the_protections_in_force(monkeypatch):
    protections = check_sandbox("weak")
    assert str(protections).startswith("sandbox: ")
    assert "limits: 5 s, 512 MiB of memory" in str(protections)
    assert str(Protections((), ("everything",))) == "sandbox: no protection; MISSING: everything"
    monkeypatch.setattr(sandbox, "_run", lambda *arguments: (None, Protections((), ("everything",))))
    with pytest.raises(WeakSandboxError, match="Missing: everything"):
        check_sandbox()
    assert check_sandbox("weak").missing == ("everything",)
