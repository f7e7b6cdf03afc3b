"""Where caches live."""

from pathlib import Path

import pytest

from glassformer.base.write_errors import WriteError
from glassformer.cache_folder import cache_folder
from glassformer.data.corpora.catalog import fetch_interface_wheel


def test_the_variables_come_before_the_home(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.delenv("GLASSFORMER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / "home" / ".cache" / "glassformer"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "glassformer"
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("GLASSFORMER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(OSError, match="set GLASSFORMER_CACHE"):
        fetch_interface_wheel()


def test_a_cache_folder_that_cannot_be_made_is_named_with_what_to_set(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(WriteError, match=r"could not write .*/file.*Set GLASSFORMER_CACHE"):
        fetch_interface_wheel()
