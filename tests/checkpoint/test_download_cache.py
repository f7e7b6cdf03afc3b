"""Models in Hugging Face's download cache, by their names on the hub."""

import pytest

from checkpoint.cached_repositories import COMMIT, put_in_cache
from checkpoint.hf_comparison import make, same_numbers
from glassformer.checkpoint import load_model
from glassformer.checkpoint.download_cache import cache_folder, cached_snapshot, find_model
from glassformer.checkpoint.summary import summarize


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def small_repository(tmp_path, hub):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.json").write_text("{}", encoding="utf-8")
    return put_in_cache(tmp_path / "files", hub, "org/name")


def test_a_model_is_loaded_by_its_name_on_the_hub(tmp_path, hub):
    theirs = make("gpt2", 3)
    theirs.config.pad_token_id = 1
    theirs.save_pretrained(tmp_path / "files")
    put_in_cache(tmp_path / "files", hub, "org/small-gpt2")
    assert same_numbers(load_model("org/small-gpt2"), theirs, 0)
    assert summarize("org/small-gpt2").family == "gpt2"


def test_the_newest_snapshot_is_the_one_that_refs_main_names(tmp_path, hub):
    snapshot = small_repository(tmp_path, hub)
    other = snapshot.with_name("0" * 40)
    other.mkdir()
    assert find_model("org/name") == snapshot == cached_snapshot("org/name")
    assert snapshot.name == COMMIT
    refs = snapshot.parent.parent / "refs" / "main"
    refs.write_text("../../../etc", encoding="utf-8")
    assert cached_snapshot("org/name") is None
    refs.unlink()
    assert cached_snapshot("org/name") is None  # two snapshots
    other.rmdir()
    assert cached_snapshot("org/name") == snapshot


def test_a_missing_model_comes_with_the_command_that_downloads_it(hub):
    with pytest.raises(FileNotFoundError, match=rf"{hub} does not hold it.*: hf download org/name$"):
        find_model("org/name")


def test_an_existing_path_comes_first(tmp_path, hub):
    small_repository(tmp_path, hub)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert str(find_model("org/name")) == "org/name"


@pytest.mark.parametrize("name", ["name", "org/name.gguf", "org/name/file", "../name", "/org/name", "org/.."])
def test_paths_stay_paths(name):
    assert str(find_model(name)) == name


def test_a_wrong_name_in_a_folder_here_is_no_model_of_the_hub(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(FileNotFoundError, match="runs/model: no such model folder: check the name"):
        find_model("runs/model")


def test_the_cache_is_where_hugging_face_puts_it(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "huggingface" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / "hub"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "huggingface" / "hub"
