"""Data options of all tasks: files or a corpus, splits, and the settings that a folder stores."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from glassformer.data.readers.records import Examples
from glassformer.tasks.classification import LabeledData
from glassformer.tasks.configs.shared import FileData, Splits, TaskData, train_on_rare_labels
from glassformer.tasks.translation import PairData


@dataclass(frozen=True, kw_only=True)
class LineData(FileData[str]):
    """Each line of a file is an example."""

    CORPORA = ("made-lines",)

    def corpus_splits(self):
        return Splits(["a"], ["b"], ["c"])

    def split_key(self, example):
        return example

    def read(self, paths):
        return [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def test_validation_examples_are_named_files_or_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {number % 300}\n" for number in range(600)), encoding="utf-8")
    (tmp_path / "b.txt").write_text("one\n", encoding="utf-8")
    named = LineData(data=(tmp_path / "a.txt",), valid=(tmp_path / "b.txt",)).splits()
    assert (len(named.train), named.valid) == (600, ["one"])
    held_out = LineData(data=(tmp_path / "a.txt",)).splits()
    train, valid = set(held_out.train), set(held_out.valid)
    assert train.isdisjoint(valid), "examples with the same text stay together"
    assert 0 < len(valid) < 40


def test_files_and_a_corpus_exclude_each_other_and_one_is_needed(tmp_path):
    with pytest.raises(ValueError, match="unknown corpus 'made-line': did you mean 'made-lines'"):
        LineData(corpus="made-line")
    with pytest.raises(ValueError, match="expected a named corpus or files, not both"):
        LineData(corpus="made-lines", data=(tmp_path / "a.txt",))
    with pytest.raises(ValueError, match="no data: expected at least one"):
        LineData().splits()
    assert LineData(corpus="made-lines").examples() == ["c"], "eval scores the test split"
    assert [LineData(**some).is_given() for some in ({}, {"corpus": "made-lines"}, {"data": ("a",)})] == [
        False,
        True,
        True,
    ]
    assert not PairData(target=("a.de",)).is_given(), "a target needs its source"


def test_a_folder_stores_how_data_was_read_and_not_which():
    data = LabeledData(data=("a.tsv",), valid=("b.tsv",), text_column="review", on_bad="skip")
    assert (data.training_files(), data.validation_files()) == ([Path("a.tsv")], [Path("b.tsv")])
    stored = data.settings()
    assert stored["data"].keys().isdisjoint({"data", "valid", "corpus", "on_bad"})
    assert LabeledData.changed_settings(stored) == {"text_column": "review"}
    assert LabeledData.changed_settings({}) == {}


def test_only_data_with_languages_stores_them():
    stored = PairData(source=("a.en",), target=("b.txt",)).settings()
    assert PairData.stored_languages(stored) == {"source": {"code": "en", "origin": "file names"}, "target": None}
    assert PairData.changed_settings(stored) == {}
    assert PairData.stored_languages({"data": stored["data"]}) is None, "older folders did not store them"
    assert TaskData.stored_languages(stored) is None


def test_held_out_examples_with_a_label_that_is_not_learned_are_moved_to_training():
    splits = Splits(Examples(["a1", "b1"], Counter({"bad": 1})), ["a2", "c1"])
    moved = train_on_rare_labels(splits, lambda example: example[0])
    assert ([*moved.train], moved.valid) == (["a1", "b1", "c1"], ["a2"])
    assert moved.train.skipped == Counter({"bad": 1})
    kept = train_on_rare_labels(splits, lambda example: example[0], keep=True)
    assert ([*kept.train], kept.valid) == (["a1", "b1"], ["a2", "c1"])
