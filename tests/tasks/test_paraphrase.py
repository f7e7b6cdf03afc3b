"""Paraphrase detection: what is learned, how the threshold is chosen, and what the command line prints."""

import csv
import io
import json
import sys
from dataclasses import replace
from random import Random

import pytest
import torch

from glassformer.cli import main
from glassformer.data.readers.records import BadRecordError
from glassformer.pipelines.comparer import ParaphraseDetector
from glassformer.pipelines.load import load
from glassformer.tasks.paraphrase import Paraphrase, ParaphraseConfig, ParaphraseData

SYNONYMS = {"cat": "feline", "dog": "hound", "sees": "spots", "likes": "adores", "hides": "conceals", "king": "monarch"}


def write_pairs(path, count, seed):
    """Two words each. A pair is the same if each word is replaced by its synonym."""
    draw = Random(seed)
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "second", "label"])
        for number in range(count):
            first = draw.sample(list(SYNONYMS), 2)
            second = first if number % 2 else draw.sample([word for word in SYNONYMS if word not in first], 2)
            label = "same" if number % 2 else "different"
            table.writerow([" ".join(first), " ".join(SYNONYMS[word] for word in second), label])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder / "train.csv", 300, 0)
    write_pairs(folder / "valid.csv", 60, 1)
    return ParaphraseData(data=(folder / "train.csv",), valid=(folder / "valid.csv",))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    config = ParaphraseConfig(data=data)
    train = replace(config.train, updates=80, eval_every=40, save_every=40, warmup=10, max_tokens=512, lr=5e-3)
    model = replace(config.model, vocab_size=300, d_model=32, d_ff=48, dropout=0.0, embedding_dropout=0.0)
    task, folder = Paraphrase(replace(config, train=train, model=model)), tmp_path_factory.mktemp("models") / "m"
    return task, task.train(folder), folder


def test_it_learns_and_the_loaded_model_has_the_threshold_of_the_validation(trained, data):
    task, scores, folder = trained
    assert scores["f1"] > task.baseline(data.splits())[1]["f1"] + 15
    detector = load(folder)
    assert isinstance(detector, ParaphraseDetector)
    assert detector.score([*data.splits().valid]) == scores
    chosen = detector.threshold
    detector.choose_threshold([*data.splits().valid])
    assert detector.threshold == pytest.approx(chosen)
    assert detector.is_paraphrase("cat sees", "feline spots")
    assert not detector.is_paraphrase("cat sees", "monarch conceals")


def test_run_and_eval_use_it_like_any_other_task(trained, data, monkeypatch, capsys):
    folder = trained[2]
    monkeypatch.setattr(sys, "stdin", io.StringIO("cat sees\tfeline spots\n\ncat sees\tmonarch conceals\n"))
    monkeypatch.setattr(sys, "argv", ["glassformer", "run", str(folder)])
    main()
    assert capsys.readouterr().out.splitlines() == ["same", "", "different"]
    monkeypatch.setattr(sys, "argv", ["glassformer", "eval", str(folder), "--data", str(data.valid[0]), "--json"])
    main()
    assert json.loads(capsys.readouterr().out)["f1"] == trained[1]["f1"]


def test_the_loss_is_the_contrastive_margin_loss(trained, monkeypatch):
    task = trained[0]
    vectors = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), dim=-1)
    monkeypatch.setattr(task, "outputs", lambda model, batch: vectors)

    class Batch:
        answers = torch.tensor([1.0, 0.0])

    cosine = float(vectors[0] @ vectors[2])
    assert task.loss(None, Batch).item() == pytest.approx(1 - cosine)  # the second pair is at 0, below the margin
    Batch.answers = torch.tensor([0.0, 1.0])
    assert task.loss(None, Batch).item() == pytest.approx(cosine - 0.5 + 1)


def test_an_unknown_label_is_refused_with_file_and_line(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tsecond\tlabel\na\tb\tmaybe\n", encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"a.tsv:2: 'maybe' under 'label': expected same or different"):
        ParaphraseData(data=(tmp_path / "a.tsv",)).examples()


def test_the_corpus_has_both_labels_in_every_split():
    for side in ParaphraseData(corpus="made-pairs").splits():
        assert {pair.score for pair in side} == {0.0, 1.0}
