"""`glassformer eval` for decoders of other libraries."""

import json
import random

import pytest

from checkpoint import hf_models
from glassformer.cli.evaluate import evaluate
from glassformer.cli.flag_parser import UsageError
from pipelines.hf_folders import save_tokenizer


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


def test_mistakes_are_explained(folder):
    with pytest.raises(UsageError, match="eval needs data"):
        evaluate([str(folder / "gpt2")])
    with pytest.raises(UsageError, match="have no effect without --data"):
        evaluate([str(folder / "gpt2"), "--choices", str(folder / "questions.jsonl"), "--stride", "3"])
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt: no such file"):
        evaluate([str(folder / "gpt2"), "--data", str(folder / "nothing.txt")])


def test_the_help_is_about_decoders(folder, capsys):
    with pytest.raises(SystemExit):
        evaluate([str(folder / "gpt2"), "--help"])
    assert "--stride" in capsys.readouterr().out
