"""Lazy imports: a name is imported at its first use and then stays in the package."""

import sys
import types

import pytest

from glassformer.base.lazy import lazy_names


@pytest.fixture
def package(monkeypatch):
    """A package in memory with one module, `colors`, that holds RED."""
    made, colors = types.ModuleType("made_package"), types.ModuleType("made_package.colors")
    made.__path__, colors.RED = [], "#f00"
    monkeypatch.setitem(sys.modules, "made_package", made)
    monkeypatch.setitem(sys.modules, "made_package.colors", colors)
    made.__getattr__ = lazy_names("made_package", {"colors": ["RED"], "missing": ["BLUE"]})
    return made


def test_a_name_is_imported_at_its_first_use(package):
    assert "RED" not in vars(package)
    assert package.RED == "#f00"
    assert vars(package)["RED"] == "#f00", "the second use needs no import"


def test_a_module_is_imported_at_its_first_use(package):
    assert package.colors is sys.modules["made_package.colors"]


def test_an_unknown_name_is_an_attribute_error_and_a_missing_module_an_import_error(package):
    with pytest.raises(AttributeError, match="module 'made_package' has no attribute 'GREEN'"):
        _ = package.GREEN
    with pytest.raises(ModuleNotFoundError, match=r"made_package\.missing"):
        _ = package.BLUE
