"""The processes that tokenize units of a corpus."""

import io
import json
import os
import sys

import pytest

from glassformer.data.readers.file_parts import FilePart
from glassformer.data.readers.text_files import Span
from glassformer.tasks import prepare_units
from glassformer.tasks.prepare_units import main, part_of, run_units, unit_folder


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
    unit_folder(tmp_path, 1).mkdir(parents=True)
    run_units(tmp_path, [0, 1, 2], processes=1)
    assert written == [0, 2]


@pytest.mark.full
def test_errors_of_processes_are_raised_once(tmp_path):
    with pytest.raises(ValueError, match=r"plan.json is missing"):
        run_units(tmp_path, [0, 1], processes=2)
