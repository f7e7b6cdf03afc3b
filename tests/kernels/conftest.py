"""Fixtures for tests that build kernels."""

import importlib.util
import os
import subprocess
import sys
from functools import cache

import pytest
import torch

from glassformer.kernels import cpp_library, kernel_registry


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A new, empty cache folder for compiled kernels."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def no_kernels_loaded(monkeypatch, folder):
    """Forget loaded kernels, failed builds and warnings, as in a new process."""
    monkeypatch.setattr(kernel_registry, "_load_once", cache(kernel_registry._load_once.__wrapped__))
    monkeypatch.setattr(kernel_registry, "was_library_built", cache(kernel_registry.was_library_built.__wrapped__))
    monkeypatch.setattr(kernel_registry, "_warn_once", cache(kernel_registry._warn_once.__wrapped__))
    monkeypatch.delenv(cpp_library.CHOICE_VARIABLE, raising=False)
    monkeypatch.setattr(cpp_library, "supported_sets", lambda: ["dotprod"])


@pytest.fixture
def run_kernels():
    """A function that runs a program on the GPU or, without one, with Triton's interpreter; it must not fail."""

    def run(program):
        if importlib.util.find_spec("triton") is None:
            pytest.skip("needs triton")
        environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
            pytest.skip("the interpreter of this Triton does not work with this NumPy")
        assert done.returncode == 0, done.stderr

    return run
