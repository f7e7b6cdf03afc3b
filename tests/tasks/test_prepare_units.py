"""The processes that tokenize units of a corpus."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest

from glassformer.checkpoint.output_folder import FolderInUseError, lock_folder
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.data.readers.file_parts import FilePart
from glassformer.data.readers.text_files import Span
from glassformer.tasks import prepare_units
from glassformer.tasks.prepare_units import is_complete, main, part_of, run_units, unit_folder, write_unit


def test_parts_are_read_from_their_records(tmp_path):
    part = FilePart((tmp_path / "a",), (Span(0, 5, 1),))
    record = json.loads(json.dumps({"files": [str(tmp_path / "a")], "spans": part.spans}))
    assert part_of(record) == part


def test_an_error_of_a_unit_is_one_line_and_an_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("[0]"))
    assert main(tmp_path, os.getppid()) == 1
    assert "plan.json is missing" in capsys.readouterr().out


def test_a_process_ends_without_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("[0]"))
    assert main(tmp_path, -1) == 0


def test_complete_units_are_not_written_again(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(prepare_units, "write_unit", lambda folder, number: written.append(number))
    store_unit(tmp_path, 1)
    assert run_units(tmp_path, [0, 1, 2], processes=1) == 2
    assert written == [0, 2]


def store_unit(folder, number):
    place = unit_folder(folder, number)
    (place / "v0").mkdir(parents=True)
    (place / "v0" / "tokens.bin").write_bytes(b"1234")
    (place / "valid.jsonl").write_text("", encoding="utf-8")
    (place / "unit.json").write_text(json.dumps({"versions": [{"v0": {"tokens.bin": 4}}]}), encoding="utf-8")
    return place


@pytest.mark.parametrize("name", ["v0/tokens.bin", "valid.jsonl", "unit.json"])
def test_a_unit_without_one_of_its_files_is_not_complete(tmp_path, name):
    place = store_unit(tmp_path, 0)
    assert is_complete(tmp_path, 0)
    (place / name).unlink()
    assert not is_complete(tmp_path, 0)


def test_a_unit_with_a_truncated_shard_is_not_complete(tmp_path):
    (store_unit(tmp_path, 0) / "v0" / "tokens.bin").write_bytes(b"12")
    assert not is_complete(tmp_path, 0)


def test_a_unit_that_another_process_writes_is_refused(tmp_path):
    """As if `--part 1/2` and `--part 1/3` ran at the same time: unit 0 belongs to both."""
    with lock_folder(tmp_path, "unit-00000.lock"), pytest.raises(FolderInUseError, match="is in use by process"):
        write_unit(tmp_path, 0)
    with pytest.raises(CorruptFolderError, match=r"plan.json is missing"):
        write_unit(tmp_path, 0)
    assert not list(tmp_path.iterdir()), "no lock is left"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_process_that_a_signal_ended_is_an_error(tmp_path, monkeypatch, number):
    """Otherwise its units are missing, and the command says that other parts are not complete."""

    def start(folder, units):
        program = f"import os; os.kill(os.getpid(), {int(number)})" if units == [0] else "import time; time.sleep(60)"
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(prepare_units, "_start", start)
    with pytest.raises(OSError, match=rf"was ended by signal {int(number)}: run the command again"):
        run_units(tmp_path, [0, 1], processes=2)


@pytest.mark.full
def test_errors_of_processes_are_raised_once(tmp_path):
    with pytest.raises(ValueError, match=r"plan.json is missing"):
        run_units(tmp_path, [0, 1], processes=2)
