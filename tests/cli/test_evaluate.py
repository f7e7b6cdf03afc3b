"""`glassformer eval`: its flags, its progress, and the folders that it refuses."""

import json

from glassformer.cli.evaluate import eval_options, evaluate
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.code_model import CodeModel
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.encoder_pipeline import Reader
from glassformer.pipelines.translator import Translator
from glassformer.tasks.classification import LabeledData
from glassformer.tasks.code import CodeData
from glassformer.tasks.task_registry import data_named
from glassformer.tasks.translation import PairData
from pipelines.tiny_pipelines import encoder, make, tokenizer


def test_a_translator_in_another_librarys_format_is_scored(tmp_path, capsys):
    make(Translator).save(tmp_path / "ours", "card")
    convert(tmp_path / "ours", tmp_path / "hf", "hf")
    for name in ("test.en", "test.de"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    arguments = [str(tmp_path / "hf"), "--source", str(tmp_path / "test.en"), "--target", str(tmp_path / "test.de")]
    evaluate([*arguments, "--beam", "2", "--json", "--quiet"])
    found = json.loads(capsys.readouterr().out)
    assert {*found} == {"greedy", "beam 2", "scored_on"}
    evaluate([str(tmp_path / "ours"), *arguments[1:], "--beam", "2", "--json", "--quiet"])
    assert json.loads(capsys.readouterr().out)["greedy"].keys() == found["greedy"].keys()
    convert(tmp_path / "hf", tmp_path / "copy", "safetensors")
    (tmp_path / "hf" / "manifest.json").unlink()  # as other programs write such a folder
    for name in ("copy", "hf"):
        evaluate([str(tmp_path / name), *arguments[1:], "--beam", "2", "--json", "--quiet"])
        assert json.loads(capsys.readouterr().out) == found


def test_greedy_search_of_a_translator_is_scored_once(tmp_path, capsys, monkeypatch):
    make(Translator).save(tmp_path / "m", "card")
    for name in ("test.en", "test.de"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    searches = []
    run = Translator.run
    monkeypatch.setattr(Translator, "run", lambda *args, **given: searches.append(given) or run(*args, **given))
    arguments = [str(tmp_path / "m"), "--source", str(tmp_path / "test.en"), "--target", str(tmp_path / "test.de")]
    evaluate([*arguments, "--beam", "1", "--json", "--quiet"])
    assert {*json.loads(capsys.readouterr().out)} == {"greedy", "scored_on"}
    assert len(searches) == 1


def test_progress_is_shown_while_texts_are_written_and_can_be_turned_off(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("glassformer.progress.PLAIN_EVERY", 0.0)
    make(Translator).save(tmp_path / "ours", "card")
    for name in ("test.en", "test.de"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    arguments = [str(tmp_path / "ours"), "--source", str(tmp_path / "test.en"), "--target", str(tmp_path / "test.de")]
    evaluate([*arguments, "--beam", "2"])
    told = capsys.readouterr()
    assert "loading torch" in told.err
    assert "writing texts" in told.err
    assert "beam" in told.out
    evaluate([*arguments, "--beam", "2", "--quiet"])
    quiet = capsys.readouterr()
    assert (quiet.err, quiet.out) == ("", told.out)


def test_a_long_text_is_an_error_unless_it_may_be_truncated(tmp_path, call):
    make(Translator).save(tmp_path / "m", "card")
    (tmp_path / "test.en").write_text("one\n" + "it is red. " * 60 + "\n", encoding="utf-8")
    (tmp_path / "test.de").write_text("one\ntwo\n", encoding="utf-8")
    arguments = ["eval", tmp_path / "m", "--source", tmp_path / "test.en", "--target", tmp_path / "test.de", "--quiet"]
    code, out, err = call(*arguments)
    assert (code, out) == (1, "")
    assert "input 2 of 2 has 241 tokens: expected at most 64, the most that the model reads; --truncate" in err
    code, out, err = call(*arguments, "--truncate")
    assert code == 0
    assert "BLEU" in out
    assert err == "glassformer: 1 input was longer than the model reads, and cut to fit\n"


def test_flags_of_another_task_are_refused_by_name(call, tmp_path, reviews):
    own = tokenizer()
    model = encoder(own, head="sequence_class", n_labels=2, pooling="mean")
    Classifier(model, Reader.own(own), labels=["bad", "good"]).save(tmp_path / "m", "card", LabeledData())
    code, _, err = call("eval", tmp_path / "m", "--data", reviews, "--beam", "4")
    assert (code, err) == (
        2,
        "glassformer: --beam is for models of translation: this one was trained for classification\n",
    )
    code, _, err = call("eval", tmp_path / "m", "--dta", reviews)
    assert code == 2
    assert "did you mean --data?" in err
    code, out, _ = call("eval", tmp_path / "m", "--data", reviews, "--json")
    assert code == 0
    assert "accuracy" in json.loads(out)
    assert "--problems" not in call("eval", tmp_path / "m", "--help")[1]


def test_the_options_are_those_of_the_data_of_the_task_and_of_all_tasks():
    translation, code, tagging = (
        set(eval_options(task, data_named(task)())) for task in ("translation", "code", "tagging")
    )
    assert {"source", "target", "beam", "tokenized", "truncate", "quantize", "json", "quiet"} <= translation
    assert "truncate" not in tagging
    assert {"data", "problems", "samples", "sandbox", "quantize", "json", "quiet"} <= code
    assert not tagging & {"beam", "tokenized", "problems", "samples", "sandbox", "valid"}


def test_data_is_needed_unless_an_option_of_the_task_replaces_it(tmp_path, call):
    make(Translator).save(tmp_path / "t", "card", PairData())
    code, _, err = call("eval", tmp_path / "t", "--beam", "2")
    assert (code, err) == (
        2,
        f"glassformer: eval needs data: expected --source PATH ... --target PATH ... after {tmp_path / 't'}\n",
    )
    make(CodeModel).save(tmp_path / "c", "card", CodeData())
    code, _, err = call("eval", tmp_path / "c", "--problems", tmp_path / "none.jsonl")
    assert code == 1
    assert "none.jsonl" in err
