"""`glassformer eval` for pretrained models."""

import copy
import json
import random
from dataclasses import replace

import pytest

from checkpoint import hf_models, random_hf
from checkpoint.hf_comparison import first_seed
from glassformer.cli.evaluate import evaluate
from glassformer.cli.flag_parser import UsageError
from glassformer.metrics import score_translations
from glassformer.metrics.rouge import score_summaries
from glassformer.pipelines.load import load
from pipelines.hf_folders import save_tokenizer
from pipelines.test_pretrained_tagger import TAGS, save_tagger
from tasks.pretrained_models import save_seq2seq
from text.language_tokenizers import save_language_model


@pytest.fixture
def folder(tmp_path):
    draw, class_name = hf_models.DECODERS["gpt2"]
    hf_models.make(draw(random.Random(1)), class_name, 1).save_pretrained(tmp_path / "gpt2")
    save_tokenizer(tmp_path / "gpt2")
    (tmp_path / "text.txt").write_text("the cat sat on the mat .\n" * 9, encoding="utf-8")
    record = {"question": "the cat sat on", "choices": ["the mat", "dog"], "answer": "A"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return tmp_path


def test_texts_and_questions_are_scored(folder, capsys):
    files = ["--data", str(folder / "text.txt"), "--choices", str(folder / "questions.jsonl")]
    evaluate([str(folder / "gpt2"), *files, "--context", "16", "--quiet"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(" ", 1)[0] for line in lines[:5]] == [
        "bits per byte",
        "loss",
        "perplexity",
        "accuracy",
        "accuracy per byte",
    ]
    assert lines[5] == "scored on 225 bytes in windows of 16 tokens every 8, 1 questions"
    evaluate([str(folder / "gpt2"), *files[:2], "--json", "--quiet"])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"bits_per_byte", "loss", "perplexity", "scored_on"}


def test_bad_questions_are_skipped_if_asked(folder, capsys):
    with (folder / "questions.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("no question\n")
    files = [str(folder / "gpt2"), "--choices", str(folder / "questions.jsonl"), "--quiet"]
    with pytest.raises(ValueError, match=r"questions\.jsonl:2: not JSON.* --on-bad skip, skips such questions"):
        evaluate(files)
    evaluate([*files, "--on-bad", "skip"])
    assert capsys.readouterr().out.splitlines()[-1] == "scored on 1 questions (1 bad ones skipped)"
    with pytest.raises(UsageError, match="--on-bad skip has no effect without --choices"):
        evaluate([str(folder / "gpt2"), "--data", str(folder / "text.txt"), "--on-bad", "skip"])


def test_mistakes_are_explained(folder):
    with pytest.raises(UsageError, match="eval needs data"):
        evaluate([str(folder / "gpt2")])
    with pytest.raises(UsageError, match="have no effect without --data"):
        evaluate([str(folder / "gpt2"), "--choices", str(folder / "questions.jsonl"), "--stride", "3"])
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt: no such file"):
        evaluate([str(folder / "gpt2"), "--data", str(folder / "nothing.txt")])


def write_pairs(folder):
    for name, text in (("test.en", "one two"), ("test.de", "eins zwei")):
        (folder / name).write_text(f"{text}\n" * 3, encoding="utf-8")
    return ["--source", str(folder / "test.en"), "--target", str(folder / "test.de"), "--json", "--quiet"]


def test_a_translator_of_many_languages_is_scored_for_two(tmp_path, capsys):
    save_language_model(tmp_path / "nllb", "nllb", 1)
    files = write_pairs(tmp_path)
    with pytest.raises(ValueError, match=r"source language 'en': the model has no such .* 3 codes: eng_Latn"):
        evaluate([str(tmp_path / "nllb"), *files])
    chosen = ["--source-language", "eng_Latn", "--target-language", "deu_Latn", "--beam", "2"]
    evaluate([str(tmp_path / "nllb"), *files, *chosen])
    found = json.loads(capsys.readouterr().out)
    assert found["scored_on"].startswith("3 pairs from ")
    texts = load(tmp_path / "nllb").with_languages("eng", "deu").run(["one two"] * 3, beam=2)
    assert found["beam 2"]["chrf"] == score_translations(texts, ["eins zwei"] * 3).values["chrf"]
    (tmp_path / "a.tsv").write_text("source\ttarget\none\tone\n", encoding="utf-8")
    with pytest.raises(ValueError, match="--task summarization: the model has language codes"):
        evaluate([str(tmp_path / "nllb"), "--task", "summarization", "--data", str(tmp_path / "a.tsv")])


def test_an_encoder_decoder_summarizes_and_answers(tmp_path, capsys):
    save_seq2seq(tmp_path / "t5", "T5")
    (tmp_path / "t5" / "generation_config.json").write_text('{"max_length": 5, "num_beams": 1}', encoding="utf-8")
    (tmp_path / "a.tsv").write_text("source\ttarget\none two three\tone\n", encoding="utf-8")
    evaluate([str(tmp_path / "t5"), "--task", "summarization", "--data", str(tmp_path / "a.tsv"), "--json", "--quiet"])
    assert "rouge1" in json.loads(capsys.readouterr().out)
    (tmp_path / "b.tsv").write_text("question\tcontext\tanswer\nwhat?\tone two\tone\n", encoding="utf-8")
    evaluate([str(tmp_path / "t5"), "--task=answering", "--data", str(tmp_path / "b.tsv"), "--json", "--quiet"])
    assert "exact_match" in json.loads(capsys.readouterr().out)
    for wrong, message in ((["--task", "tagging"], "--task tagging: expected one of"), (["--task"], "needs a value")):
        with pytest.raises(UsageError, match=message):
            evaluate([str(tmp_path / "t5"), *wrong])


def test_the_settings_of_a_task_in_the_files_are_used(tmp_path, capsys, caplog):
    save_seq2seq(tmp_path / "t5", "T5")
    settings = {"prefix": "three ", "max_length": 6, "num_beams": 2}
    tasks = {"summarization": settings, "translation_en_to_de": settings | {"prefix": "two "}}
    config = json.loads((tmp_path / "t5" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "t5" / "config.json").write_text(json.dumps(config | {"task_specific_params": tasks}), encoding="utf-8")
    (tmp_path / "a.tsv").write_text("source\ttarget\none two\ttwo one\n", encoding="utf-8")
    evaluate([str(tmp_path / "t5"), "--task", "summarization", "--data", str(tmp_path / "a.tsv"), "--json", "--quiet"])
    found, model = json.loads(capsys.readouterr().out), load(tmp_path / "t5")
    text = model.with_task("summarization").run("one two")
    assert text == replace_generation(model, max_new_tokens=5, num_beams=2).run("three one two")
    assert found["rougeL"] == score_summaries([text], [["two one"]]).values["rougeL"]
    files = write_pairs(tmp_path)
    evaluate([str(tmp_path / "t5"), *files])
    texts = model.with_task("translation_en_to_de").run(["one two"] * 3)
    found = json.loads(capsys.readouterr().out)
    assert found["beam 2"]["chrf"] == score_translations(texts, ["eins zwei"] * 3).values["chrf"]
    assert not caplog.records
    evaluate([str(tmp_path / "t5"), *files, "--target-language", "fr"])
    assert "not translation_en_to_fr: no prefix is used" in caplog.text


def replace_generation(model, **changes):
    found = copy.copy(model)
    found.generation = replace(model.generation, **changes)
    return found


def test_an_encoder_is_scored_by_the_task_of_its_head(tmp_path, capsys):
    save_tagger("bert", tmp_path / "tagger", 1, id2label=dict(enumerate(TAGS)))
    (tmp_path / "a.conll").write_text("ab B-PER\ncd O\n\nfed B-LOC\n", encoding="utf-8")
    evaluate([str(tmp_path / "tagger"), "--data", str(tmp_path / "a.conll"), "--json", "--quiet"])
    found = json.loads(capsys.readouterr().out)
    assert {"f1", "precision", "recall"} <= {*found}
    assert found["scored_on"] == f"2 sentences from {tmp_path / 'a.conll'}"
    drawn = random_hf.draw("bert", first_seed("bert"))
    drawn.config.num_labels = 2
    (tmp_path / "a.tsv").write_text("text\tlabel\nab cd\tLABEL_0\n", encoding="utf-8")
    for head in ("ForSequenceClassification", "Model"):
        drawn.class_name = f"Bert{head}"
        random_hf.build(drawn, 0).save_pretrained(tmp_path / head)
        for file in (tmp_path / "tagger").glob("*token*"):
            (tmp_path / head / file.name).write_bytes(file.read_bytes())
    files = ["--data", str(tmp_path / "a.tsv"), "--json", "--quiet"]
    evaluate([str(tmp_path / "ForSequenceClassification"), *files])
    assert "accuracy" in json.loads(capsys.readouterr().out)
    with pytest.raises(ValueError, match="is an encoder without classes"):
        evaluate([str(tmp_path / "Model"), *files])


def test_the_help_is_about_decoders(folder, capsys):
    with pytest.raises(SystemExit):
        evaluate([str(folder / "gpt2"), "--help"])
    assert "--stride" in capsys.readouterr().out
