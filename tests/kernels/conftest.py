"""Fixtures for tests that build kernels."""

from functools import cache

import pytest

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
