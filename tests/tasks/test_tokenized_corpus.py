"""A tokenized corpus on disk."""

import json

import pytest

from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.tasks.configs.task_options import make_config
from glassformer.tasks.prepare_corpus import prepare_corpus
from glassformer.tasks.tokenized_corpus import TokenizedCorpus
from glassformer.tasks.translation import PairData, TranslationConfig


@pytest.fixture
def folder(tmp_path):
    rows = "".join(f"one {n}\ttwo {n}\n" for n in range(60))
    (tmp_path / "a.tsv").write_text(f"source\ttarget\n{rows}", encoding="utf-8")
    options = {"data.source": [tmp_path / "a.tsv"], "model.vocab_size": 300, "data.source_language": "en"}
    prepare_corpus("translation", make_config(TranslationConfig, options), tmp_path / "out", processes=1)
    return tmp_path / "out"


def test_data_options_know_where_prepared_data_came_from(folder):
    data = PairData(prepared=folder)
    assert data.is_given()
    assert [path.name for path in data.training_files()] == ["a.tsv"]
    assert data.languages()[0].code == "en"
    assert data.settings() == data.original().settings()
    assert data.examples() == list(data.splits().valid)
    assert not data.is_large()


def test_a_changed_file_is_an_error(folder):
    (file,) = folder.rglob("source.bin")
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(
        CorruptFolderError, match=r"source.bin has [\d,]+ bytes, expected [\d,]+ bytes: run glassformer prepare again"
    ):
        TokenizedCorpus(folder)
    file.unlink()
    with pytest.raises(CorruptFolderError, match=r"source.bin is missing"):
        TokenizedCorpus(folder)


def test_another_folder_or_format_is_an_error(folder, tmp_path):
    with pytest.raises(CorruptFolderError, match=r"prepared.json is missing: expected a folder that"):
        TokenizedCorpus(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"--prepared .*other: no such folder: expected one that"):
        TokenizedCorpus(tmp_path / "other")
    text = (folder / "prepared.json").read_text(encoding="utf-8")
    (folder / "prepared.json").write_text(text[:50], encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"prepared.json cannot be read: .*: run glassformer prepare again"):
        TokenizedCorpus(folder)
    (folder / "prepared.json").write_text(text, encoding="utf-8")
    about = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
    for edited in ({"format": 1}, {**about, "size": None}, {**about, "versions": [[{}]]}, {**about, "sizes": 3}):
        (folder / "prepared.json").write_text(json.dumps(edited), encoding="utf-8")
        with pytest.raises(CorruptFolderError, match=r"lacks what glassformer prepare writes .*prepare again"):
            TokenizedCorpus(folder)
    (folder / "prepared.json").write_text(json.dumps({**about, "format": 99}), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match="has format 99, expected 1"):
        TokenizedCorpus(folder)
