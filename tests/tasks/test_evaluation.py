"""The options and scores of each task for `glassformer eval`."""

from dataclasses import fields, replace

import pytest

from glassformer.metrics.scores import Scores
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.code_model import CodeModel
from glassformer.pipelines.translator import Translator
from glassformer.tasks.classification import Classification, LabeledData
from glassformer.tasks.code import Code, CodeData, CodeEvalOptions
from glassformer.tasks.evaluation import EvalOptions, describe_scored
from glassformer.tasks.task_registry import TASKS, task_named
from glassformer.tasks.translation import PairData, Translation, TranslationEvalOptions
from pipelines.tiny_pipelines import make


def write_pairs(folder):
    for name, text in (("a.en", "the old cat sees it"), ("a.de", "die alte Katze sieht es")):
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    return PairData(source=(folder / "a.en",), target=(folder / "a.de",))


@pytest.mark.parametrize("task", TASKS)
def test_the_options_of_a_task_differ_from_those_of_its_data(task):
    kind = task_named(task)
    assert issubclass(kind.EvalOptions, EvalOptions)
    own = {field.name for field in fields(kind.EvalOptions)}
    assert own.isdisjoint(field.name for field in fields(kind.data_class()))
    assert kind.EvalOptions().needs_data


def test_most_tasks_have_one_score_without_a_name(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe cat\tanimal\n", encoding="utf-8")
    data = LabeledData(data=(tmp_path / "a.tsv",))
    report = Classification.evaluate(make(Classifier), data, EvalOptions())
    assert list(report.scores) == [""]
    assert report.scores[""]["accuracy"] in (0, 100)
    assert report.scored_on == f"1 example from {tmp_path / 'a.tsv'}"


def test_a_translator_is_scored_with_greedy_and_beam_search(tmp_path):
    options = TranslationEvalOptions(beam=3, tokenized="de")
    report = Translation.evaluate(make(Translator), write_pairs(tmp_path), options)
    assert list(report.scores) == ["greedy", "beam 3"]
    assert all(set(scores.values) == {"bleu", "chrf", "tokenized_bleu"} for scores in report.scores.values())
    plain = Translation.evaluate(make(Translator), write_pairs(tmp_path), TranslationEvalOptions())
    assert list(plain.scores) == ["greedy"], "the beam of the model is 1"
    wide = make(Translator)
    wide.generation = replace(wide.generation, num_beams=2)
    found = Translation.evaluate(wide, write_pairs(tmp_path), TranslationEvalOptions())
    assert list(found.scores) == ["greedy", "beam 2"], "the beam of the model"
    assert "tokenized_bleu" not in plain.scores["greedy"].values


def test_problems_replace_the_data_of_a_code_model(tmp_path, monkeypatch, capsys):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"text": "Add.", "test_list": ["assert add(1, 2) == 3"]}\n', encoding="utf-8")
    options = CodeEvalOptions(problems=path, samples=3, sandbox="weak")
    assert not options.needs_data
    tool, asked = make(CodeModel), []
    monkeypatch.setattr(tool, "solve", lambda problems, **how: asked.append(how) or Scores({"pass_at_1": 50.0}))
    monkeypatch.setattr("glassformer.tasks.code.check_sandbox", lambda mode: f"protections of {mode}")
    report = Code.evaluate(tool, CodeData(), options)
    assert asked == [{"samples": 3, "sandbox": "weak"}]
    assert (report.scores[""]["pass_at_1"], report.scored_on) == (
        50.0,
        f"3 samples for each problem, the problems of {path}",
    )
    assert capsys.readouterr().err == "protections of weak\n"


def test_the_description_names_the_method_and_the_files_or_the_corpus(tmp_path):
    data = write_pairs(tmp_path)
    assert describe_scored(data, [None] * 1200, "pairs", "beam 4") == (
        f"beam 4, 1,200 pairs from {tmp_path / 'a.en'}, {tmp_path / 'a.de'}"
    )
    assert describe_scored(PairData(corpus="multi30k"), [None] * 5, "pairs") == "5 pairs of multi30k"


def test_skipped_records_are_counted_and_files_without_examples_are_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\nthe cat\tanimal\n\tanimal\nthree\tmore\tcells\n", encoding="utf-8")
    data = LabeledData(data=(path,), on_bad="skip")
    report = Classification.evaluate(make(Classifier), data, EvalOptions())
    assert report.scored_on == f"1 example from {path} (2 bad records skipped)"
    path.write_text("text\tlabel\n\tanimal\n", encoding="utf-8")
    message = r"no examples from .*a.tsv \(1 bad record skipped\): expected at least one to score on"
    with pytest.raises(ValueError, match=message):
        Classification.evaluate(make(Classifier), data, EvalOptions())
    pairs = write_pairs(tmp_path)
    (tmp_path / "a.en").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no pairs from .*a.en, .*a.de \(1 bad record skipped\)"):
        Translation.evaluate(make(Translator), replace(pairs, on_bad="skip"), TranslationEvalOptions())
