"""The resident memory of a process, on every system that reports it and on those that do not."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from glassformer.training import resident_memory as resident


@pytest.fixture
def fake_proc(tmp_path, monkeypatch):
    """An empty folder in place of /proc/self."""
    monkeypatch.setattr(resident, "Path", lambda path: tmp_path / Path(path).name)
    return tmp_path


@pytest.mark.parametrize(("platform", "size"), [("linux", 1024), ("darwin", 1)])
@pytest.mark.parametrize("status", [None, b"", b"Name:\tpython\nVmRSS:\t      5 kB\n"])
def test_peak_memory_uses_the_unit_of_the_operating_system(fake_proc, monkeypatch, platform, size, status):
    usage = SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda who: SimpleNamespace(ru_maxrss=7))
    if status is not None:
        (fake_proc / "status").write_bytes(status)
    monkeypatch.setitem(sys.modules, "resource", usage)
    monkeypatch.setattr(resident.sys, "platform", platform)
    assert resident.peak_resident() == 7 * size
    assert resident.resident() == (5 * 1024 if status else None)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert resident.peak_resident() is None


def test_a_program_name_that_is_not_utf8_is_ignored(fake_proc):
    (fake_proc / "status").write_bytes(b"Name:\tpyth\xf6n\nVmHWM:\t    9 kB\nVmRSS:\t    5 kB\n")
    assert (resident.peak_resident(), resident.resident()) == (9 * 1024, 5 * 1024)


def test_forget_peak_resets_the_peak(fake_proc):
    resident.forget_peak()
    assert (fake_proc / "clear_refs").read_bytes() == b"5"


def test_forget_peak_without_permission_does_nothing(fake_proc):
    (fake_proc / "clear_refs").mkdir()  # a folder cannot be written to, even by root
    resident.forget_peak()
    assert (fake_proc / "clear_refs").is_dir()
