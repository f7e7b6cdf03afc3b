"""Fixtures that call the command line in this process."""

import io
import sys

import pytest

from glassformer.cli import main


@pytest.fixture
def run(monkeypatch):
    """Call `glassformer run` with a pipeline; return the exit code, the lines of stdout, and stderr."""

    def call(tool, *options, stdin="", is_terminal=False):
        streams = [io.TextIOWrapper(io.BytesIO(part), encoding="utf-8") for part in (stdin.encode(), b"", b"")]
        streams[2].isatty = lambda: is_terminal
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        loads = []
        monkeypatch.setattr("glassformer.pipelines.load.load", lambda path, **_: loads.append(path) or tool)
        monkeypatch.setattr(sys, "argv", ["glassformer", "run", "m", *map(str, options)])
        call.loads = loads
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
        for stream in streams[1:]:
            stream.flush()
        out, err = (stream.buffer.getvalue().decode() for stream in streams[1:])
        return code, out.split("\n")[:-1], err  # a random model may write other characters that break lines

    return call


@pytest.fixture
def run_bytes(monkeypatch):
    """Call `glassformer run` with a pipeline on bytes; return the exit code, the bytes of stdout, and stderr."""

    def call(tool, data, *options, encoding="utf-8"):
        streams = [io.TextIOWrapper(io.BytesIO(part), encoding=encoding) for part in (data, b"", b"")]
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr("glassformer.pipelines.load.load", lambda path, **_: tool)
        monkeypatch.setattr(sys, "argv", ["glassformer", "run", "m", *options])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
        streams[2].flush()
        return code, streams[1].buffer.getvalue(), streams[2].buffer.getvalue().decode()

    return call


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the command line; return its exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        told = capsys.readouterr()
        return code, told.out, told.err

    return run
