"""The command line as a process: exit codes, signals, closed streams, and one-sentence errors."""

import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from glassformer import cli
from glassformer.checkpoint.safe_files import seal_folder
from glassformer.cli.flag_parser import UsageError
from glassformer.cli.verbs import VERBS
from glassformer.tasks.task_registry import TASKS


@pytest.fixture
def call(monkeypatch):
    """Call the command line; return its exit code."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as stop:
            return stop.code
        return 0

    return run


@pytest.fixture(autouse=True)
def usual_signals():
    """Use Python's default handlers. A process started in the background of a shell ignores SIGINT."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def verb(monkeypatch):
    """Replace the work of every verb by a function."""

    def use(deed):
        monkeypatch.setattr(cli, "_run", lambda verb, rest: deed())

    return use


def test_a_closed_stdout_is_reported(call, monkeypatch, capfd):
    monkeypatch.setattr(sys, "stdout", None)
    assert call("--version") == 1
    assert capfd.readouterr().err.startswith("glassformer: stdout is closed: expected a terminal, a file or a pipe")


class Full(io.StringIO):
    """A file on a full disk, whose buffer cannot be flushed."""

    def flush(self):
        if self.getvalue():
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("when", ["at the end", "in the verb", "with an error of its own"])
def test_a_full_stdout_is_reported_once(call, verb, when, monkeypatch, capsys):
    def write():
        print("a result", flush=when == "in the verb")
        if when == "with an error of its own":
            raise ValueError("by hand")

    verb(write)
    monkeypatch.setattr(sys, "stdout", Full())
    assert call("info") == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("glassformer: stdout cannot be written: ")
    assert "No space left on device" in told[-1]
    assert told[:-1] == (["glassformer: by hand"] if when == "with an error of its own" else [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_stdout_is_flushed_before_python_exits(call, monkeypatch, capsys):
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert call("--version") == 1
        full.flush()  # as Python does when it ends


def test_a_closed_pipe_is_no_error(call, verb, monkeypatch, capsys):
    def write():
        raise BrokenPipeError(32, "Broken pipe")

    verb(write)
    assert call("info") == 141
    assert capsys.readouterr().err == ""


def test_without_stderr_an_error_is_not_written_to_stdout(call, verb, monkeypatch, capsys):
    def fail():
        print("a result")
        raise ValueError("by hand")

    verb(fail)
    monkeypatch.setattr(sys, "stderr", None)
    assert call("info") == 1
    sys.stderr.close()
    assert capsys.readouterr().out == "a result\n"


def test_sigterm_cleans_up_and_exits_with_143(call, verb, capsys):
    cleaned = []

    def work():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)
        finally:
            cleaned.append(signal.getsignal(signal.SIGTERM))

    verb(work)
    before = signal.getsignal(signal.SIGTERM)
    assert call("info") == 143
    assert cleaned == [signal.SIG_DFL], "a second signal ends it at once"
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_timer_ends_the_command_if_the_exception_of_a_signal_is_lost(call, verb, number, monkeypatch):
    """An import may swallow the exception. If it arrives, the timer is canceled."""
    ended = []
    monkeypatch.setattr("glassformer.cli.process.SIGNAL_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", ended.append)

    def lose():
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), number)
            threading.Event().wait(60)
        latest = time.monotonic() + 60
        while not ended and time.monotonic() < latest:
            time.sleep(0.01)

    verb(lose)
    call("info")
    assert ended == [128 + number]


def test_an_ignored_sigterm_stays_ignored(call, verb, capsys):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        verb(lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert call("info") == 0
    finally:
        signal.signal(signal.SIGTERM, before)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 8.00 GiB.\nSee the documentation"
    ),
    MemoryError(),
    MemoryError("Unable to allocate 7.45 GiB for an array"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("CUDA error: out of memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: f"{type(error).__name__} {error}"[:40])
@pytest.mark.parametrize(("name", "advice"), [("train", "--max-tokens"), ("run", "smaller model")])
def test_an_out_of_memory_error_says_which_options_to_lower(call, verb, error, name, advice, capsys):
    def fail():
        raise error

    verb(fail)
    assert call(name) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("glassformer: out of memory: ")
    assert advice in second


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("no such preset"), 1), (FileNotFoundError("no such file"), 1), (UsageError("no such option"), 2)],
)
def test_only_the_first_process_reports_an_error_that_all_have(call, verb, error, code, monkeypatch, capsys):
    """The launcher ends all processes with SIGTERM when one has failed, so that each waits for the first one."""

    def fail():
        raise error

    verb(fail)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(cli, "FOLLOWER_SECONDS", 60.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: os.kill(os.getpid(), signal.SIGTERM))
    assert call("train") == 143
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert call("train") == code
    assert ("no such" in capsys.readouterr().err) == (code == 1), "all processes have the same command line"


def test_an_allocation_error_of_torch_is_recognized():
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert cli._is_out_of_memory(caught.value)


def test_a_bug_keeps_its_traceback(call, verb):
    def fail():
        raise RuntimeError("a bug")

    verb(fail)
    with pytest.raises(RuntimeError, match="a bug"):
        call("info")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["demo", "--help"], ["train", "classification", "--help"], ["--version"]]
)
def test_a_closed_pipe_exits_with_141_and_no_message(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "glassformer", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
    finally:
        os.close(writer)
    assert result.returncode == 141
    assert result.stderr == ""


WITHOUT_TORCH = """
import contextlib, io, json, sys
from glassformer import cli

for command in json.loads(sys.argv[1]):
    sys.argv = ["glassformer", *command]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        cli.main()
    assert told.getvalue(), command
    assert "torch" not in sys.modules, command
"""


def test_no_help_imports_torch(tmp_path):
    (tmp_path / "task.json").write_text(json.dumps({"task": "tagging", "data": {"tag_column": 2}}), encoding="utf-8")
    seal_folder(tmp_path)
    commands = [["--help"], ["--version"], ["completion", "bash"], *([verb, "--help"] for verb in VERBS)]
    commands += [["train", task, "--help"] for task in TASKS] + [["eval", str(tmp_path), "--help"]]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_every_verb_has_a_function():
    assert [*cli.FUNCTIONS] == [*cli.VERBS]
    for module, name in cli.FUNCTIONS.values():
        assert callable(getattr(importlib.import_module(f"glassformer.cli.{module}"), name))
