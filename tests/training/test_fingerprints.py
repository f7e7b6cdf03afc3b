"""Fingerprints depend on the contents of a run's inputs, not on where they are stored."""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from glassformer.checkpoint.safe_files import seal_folder
from glassformer.training.fingerprints import (
    fingerprint_examples,
    fingerprint_model,
    fingerprint_path,
    fingerprint_paths,
    paths_of,
)


@dataclass
class Data:
    train: Path
    more: tuple[Path, ...] = ()
    corpus: str = ""


def write(path, text="text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_path_in_the_fields_is_found_by_name(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    assert paths_of(Data(a, (a, b), "toy")) == {"train": a, "more[0]": a, "more[1]": b}


def test_a_moved_file_has_the_same_fingerprint_and_a_changed_one_another(tmp_path):
    first = fingerprint_paths(Data(write(tmp_path / "a.txt")))
    assert first == fingerprint_paths(Data(write(tmp_path / "elsewhere" / "b.txt")))
    assert first != fingerprint_paths(Data(write(tmp_path / "a.txt", "other text")))
    assert first != fingerprint_paths(Data(write(tmp_path / "a.csv"))), "the suffix decides how a file is read"
    assert fingerprint_paths(Data(tmp_path / "missing.txt")) == {}


def test_a_folder_is_known_by_the_names_and_contents_of_its_files(tmp_path):
    write(tmp_path / "one" / "a.txt")
    before = fingerprint_path(tmp_path / "one")
    write(tmp_path / "two" / "b.txt")
    assert fingerprint_path(tmp_path / "two") != before
    write(tmp_path / "one" / "notes.md")
    assert fingerprint_path(tmp_path / "one") != before
    assert fingerprint_path(tmp_path / "one", suffixes=[".txt"]) == before
    (tmp_path / "one" / "c.txt.gz").write_bytes(gzip.compress(b"text", mtime=0))
    assert fingerprint_path(tmp_path / "one", suffixes=[".txt"]) != before


def test_a_model_with_a_manifest_is_known_by_the_manifest(tmp_path):
    write(tmp_path / "model" / "config.json", "{}")
    seal_folder(tmp_path / "model")
    before = fingerprint_model(tmp_path / "model")
    write(tmp_path / "model" / "notes.txt")
    assert fingerprint_model(tmp_path / "model") == before
    seal_folder(tmp_path / "model")
    assert fingerprint_model(tmp_path / "model") != before


def test_examples_are_known_by_their_values_but_not_by_their_line():
    class Example(NamedTuple):
        text: str
        where: str

    found = {fingerprint_examples([Example(text, where)]) for text, where in (("a", "f:1"), ("a", "f:2"))}
    assert len(found) == 1
    assert fingerprint_examples([Example("b", "f:1")]) not in found
