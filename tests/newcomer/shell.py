"""A shell that runs `glassformer` commands in this process: pipes from echo, < FILE, > FILE, $NAME and # comments."""

import io
import os
import shlex
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glassformer import cli

PROGRAMS = ("glassformer", ".venv/bin/glassformer")


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


class Shell:
    """Runs command lines in one folder. `variables` replace $NAME."""

    def __init__(self, folder, variables=None):
        self.folder, self.variables = Path(folder), dict(variables or {})

    def run(self, line, *, more_for_train=""):
        """Run one line. `more_for_train` are flags that are added to a `train` command."""
        words, stdin, output = self._parse(line)
        ended = self.call(words + more_for_train.split() * (words[0] == "train"), stdin)
        if output is not None:
            (self.folder / output).write_text(ended.out, encoding="utf-8", newline="")
        return ended

    def call(self, words, stdin=""):
        """Run `glassformer WORDS`."""
        streams = [io.TextIOWrapper(io.BytesIO(part), encoding="utf-8") for part in (stdin.encode(), b"", b"")]
        with _place(self.folder), _streams(*streams), _arguments(words):
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
        for stream in streams[1:]:
            stream.flush()
        return Ended(code, *(stream.buffer.getvalue().decode() for stream in streams[1:]))

    def _parse(self, line):
        stdin = ""
        for name, value in self.variables.items():
            line = line.replace(f"${name}", str(value))
        words = shlex.split(line, comments=True)
        if "|" in words:
            at = words.index("|")
            assert words[0] == "echo", f"only echo may stand before a pipe here: {line}"
            stdin, words = " ".join(words[1:at]) + "\n", words[at + 1 :]
        assert words[0] in PROGRAMS, f"not a glassformer command: {line}"
        words, output = words[1:], None
        if ">" in words:
            output = words[words.index(">") + 1]
            del words[words.index(">") : words.index(">") + 2]
        if "<" in words:
            stdin = (self.folder / words[words.index("<") + 1]).read_text(encoding="utf-8")
            del words[words.index("<") : words.index("<") + 2]
        return words, stdin, output


@contextmanager
def _place(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _streams(*streams):
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


@contextmanager
def _arguments(words):
    before = sys.argv
    sys.argv = ["glassformer", *words]
    try:
        yield
    finally:
        sys.argv = before
