"""The standard library as a corpus, on a small library made here."""

import pytest

from glassformer.data.corpora import standard_library as corpus

LONG = "This docstring has more than the forty characters that a corpus needs."


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A standard library of 60 files, with one in Latin-1 and one in an excluded folder."""
    for number in range(60):
        (tmp_path / f"m{number}.py").write_text(f'"""{LONG} {number}"""\nx = {number}\n', encoding="utf-8")
    (tmp_path / "old.py").write_bytes("# caf\xe9\n".encode("latin-1"))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "m.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(corpus, "library_folder", lambda: tmp_path)
    return tmp_path


def test_every_file_is_on_one_side_by_its_name(library):
    train, valid = corpus.standard_library("code")
    names = {document.where for document in train} | {document.where for document in valid}
    assert names == {f"m{number}.py" for number in range(60)}
    assert len(train) + len(valid) == 60
    assert all(corpus.is_held_out(document.where) for document in valid)
    assert not any(corpus.is_held_out(document.where) for document in train)
    (library / valid[0].where).write_text("changed = True\n", encoding="utf-8")
    assert corpus.standard_library("code").valid[0] == ("changed = True\n", valid[0].where)


@pytest.mark.usefixtures("library")
def test_docstrings_of_each_file_are_a_document():
    train, valid = corpus.standard_library("docstrings")
    assert {document.text for document in [*train, *valid]} == {f"{LONG} {number}" for number in range(60)}


def test_docstrings_are_dedented_long_and_unique():
    source = f'"""{LONG}\n\n    Indented.\n"""\ndef f():\n    "short"\nclass A:\n    """{LONG}\n\n    Indented."""\n'
    assert list(corpus.docstrings(source)) == [f"{LONG}\n\nIndented."]
    assert list(corpus.docstrings("def (")) == []


def test_a_folder_that_is_no_library_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "library_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="holds 0 files of Python: expected the standard library"):
        corpus.standard_library("code")
