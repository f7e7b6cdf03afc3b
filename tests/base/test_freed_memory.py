"""Keeping freed memory works with C libraries that can do it, and with those that cannot."""

import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from glassformer.base import freed_memory
from glassformer.base.freed_memory import (
    KEPT_SIZES,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    give_back_freed,
    keep_freed_memory,
)


@pytest.mark.parametrize(("most", "kept"), [(1 << 40, KEPT_SIZES[0]), (1 << 25, KEPT_SIZES[1]), (0, None)])
def test_both_limits_of_the_c_library_are_raised_or_neither(monkeypatch, most, kept):
    limits = {}

    class Library:
        def mallopt(self, parameter, value):
            if parameter == M_MMAP_THRESHOLD and value > most:
                return 0
            limits[parameter] = value
            return 1

    monkeypatch.setattr("ctypes.CDLL", lambda name: Library())
    keep_freed_memory()
    assert limits == ({} if kept is None else {M_TRIM_THRESHOLD: kept, M_MMAP_THRESHOLD: kept})


def test_a_c_library_without_mallopt_is_enough(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    keep_freed_memory()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such limits")
def test_memory_that_is_freed_and_taken_again_is_not_cleared_again():
    code = """
import resource, torch
from glassformer.base.freed_memory import keep_freed_memory
keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        parts = [torch.ones(2**20) for _ in range(8)]
        del parts
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 20 * 8 * 2**22 // 4096 // 10


def test_give_back_freed_without_glibc_does_nothing(monkeypatch):
    # musl lacks the function; other systems cannot open the running program as a library.
    for nothing in (SimpleNamespace, OSError, TypeError):
        monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda _, nothing=nothing: _raise_or_make(nothing))
        give_back_freed()  # no error


def _raise_or_make(kind):
    if issubclass(kind, Exception):
        raise kind
    return kind()
