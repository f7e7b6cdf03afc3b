"""The process around a command: its streams and its messages. `test_main.py` tests its signals."""

import gc
import io
import os
import sys

import pytest

from glassformer.cli.process import computing_for_long, discard_output, fail, prepare_streams


def test_a_failure_is_one_line_on_stderr_with_its_exit_code(capsys):
    with pytest.raises(SystemExit) as ended:
        fail("lr=0: expected more than 0", 2)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "glassformer: lr=0: expected more than 0\n")


def test_streams_are_utf8_in_every_locale(monkeypatch):
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdin", "stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    prepare_streams()
    assert {stream.encoding for stream in streams.values()} == {"utf-8"}
    print("Käse \udcff")
    sys.stdout.flush()
    assert streams["stdout"].buffer.getvalue() == "Käse \\udcff\n".encode()


def test_output_that_cannot_be_written_is_discarded(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        stdout.write("nobody reads this")
        discard_output()
        stdout.flush()  # without the call, this raises BrokenPipeError


def test_a_long_computation_freezes_what_exists_and_unfreezes_it_again():
    before, counts = gc.get_freeze_count(), []

    def fail_within():
        with computing_for_long():
            counts.append(gc.get_freeze_count())
            raise ValueError("a bad line")

    with pytest.raises(ValueError, match="a bad line"):
        fail_within()
    assert counts[0] > before + 1000
    assert gc.get_freeze_count() == 0
