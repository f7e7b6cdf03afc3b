"""The base class of all tasks: configs, inputs and descriptions."""

from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.data.corpora.docstrings import Docstring
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.tasks.language import DocumentData, Language, LanguageConfig
from glassformer.tasks.masking import Masking, MaskingConfig
from glassformer.tasks.pretraining import TextData
from glassformer.tasks.translation import Translation
from tasks.tiny_tasks import translation, write_pairs


def test_every_kind_of_input_has_a_fingerprint(tmp_path, monkeypatch):
    made = [Docstring(f"Number {n} is a number.", f"Tell number {n}.") for n in range(99)]
    monkeypatch.setattr("glassformer.tasks.pretraining.docstrings", lambda: made)
    write_pairs(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a text", encoding="utf-8")
    (tmp_path / "texts" / "b.py").write_text("not read", encoding="utf-8")
    folder = Language(LanguageConfig(data=DocumentData(data=(tmp_path / "texts",))))
    before = folder.inputs()
    (tmp_path / "texts" / "b.py").write_text("changed, but not read", encoding="utf-8")
    assert folder.inputs() == before
    (tmp_path / "texts" / "a.txt").write_text("another text", encoding="utf-8")
    assert folder.inputs() != before
    corpus = Masking(MaskingConfig(data=TextData(corpus="docstrings")))
    assert set(corpus.inputs()) == {"data.corpus (train)", "data.corpus (valid)", "data.corpus (test)"}
    begun = Translation(replace(translation(tmp_path), start_from=tmp_path / "texts"))
    assert set(begun.inputs()) == {"data.source[0]", "data.target[0]", "start_from"}


def test_a_config_of_another_task_is_refused():
    with pytest.raises(TypeError, match="Translation was given a ClassificationConfig: expected a TranslationConfig"):
        Translation(ClassificationConfig())


def test_scores_are_described_by_split_and_origin():
    files = Classification(ClassificationConfig(data=LabeledData(data=(Path("x/a.tsv"),), valid=(Path("x/b.tsv"),))))
    assert files.scored_on("validation", 1000) == "1,000 validation examples from b.tsv"
    held_out = Classification(ClassificationConfig(data=LabeledData(data=(Path("x/a.tsv"),))))
    assert held_out.scored_on("validation", 9, "greedy") == "greedy, 9 validation examples held out from a.tsv"
    corpus = Classification(ClassificationConfig(data=LabeledData(corpus="interface-languages")))
    assert files.scored_on("validation", 1) == "1 validation example from b.tsv"
    assert corpus.scored_on("test", 9) == "9 test examples of interface-languages"
    assert corpus.data_facts() == [("corpus", "`interface-languages`")]
    assert held_out.data_facts()[1] == ("validation files", "held out from the training files")


def test_given_options_are_remembered_so_that_the_others_can_be_chosen():
    task = Classification.with_chosen_defaults({"train.lr": 0.5}, size="tiny")
    assert (task.given, task.size, task.config.train.lr) == ({"train.lr": 0.5}, "tiny", 0.5)
    assert Classification(ClassificationConfig()).given is None
    assert Classification.data_class() is LabeledData
