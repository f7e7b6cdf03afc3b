"""Labelled texts to classes: what is learned, kept and said."""

import io
import json
import random
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.records import BadRecordError
from glassformer.metrics.classification import score_classes
from glassformer.tasks.classification import Classification, ClassificationConfig, Classifier, LabelledData
from glassformer.tasks.encoders import begin_from
from glassformer.tasks.load import load

ANIMALS, TOOLS = ["cat", "dog", "cow", "hen"], ["saw", "axe", "awl", "nail"]


def sentences(count, seed=0):
    draw = random.Random(seed)
    for _ in range(count):
        label, words = draw.choice([("animal", ANIMALS), ("tool", TOOLS)])
        others = draw.choices(["the", "a", "red", "old", "big", "sees"], k=draw.randint(1, 6))
        others.insert(draw.randint(0, len(others)), draw.choice(words))
        yield " ".join(others), label


@pytest.fixture
def data(tmp_path):
    for name, count, seed in (("train.tsv", 300, 0), ("valid.tsv", 60, 1)):
        lines = [f"{text}\t{label}" for text, label in sentences(count, seed)]
        (tmp_path / name).write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return LabelledData(data=(tmp_path / "train.tsv",), valid=(tmp_path / "valid.tsv",))


def quick(data, **changes):
    config = ClassificationConfig(data=data)
    train = replace(config.train, updates=120, eval_every=60, save_every=60, warmup=10, max_tokens=512, lr=5e-3)
    return replace(
        config, train=train, model=replace(config.model, vocab_size=400, d_model=32, d_ff=48, dropout=0.1), **changes
    )


def test_it_learns_and_remembers(data, tmp_path):
    scores = Classification(quick(data)).train(tmp_path / "model")
    assert scores["accuracy"] > 95
    model = load(tmp_path / "model")
    assert isinstance(model, Classifier)
    assert model.run(["the old cat", "", "a red axe"]) == ["animal", "", "tool"]
    ((prediction,),) = model.classify(["the old cat"])
    assert 0.5 < prediction.probability <= 1
    assert model.score([*data.splits().valid]) == scores
    assert "accuracy" in (tmp_path / "model" / "README.md").read_text()


def test_one_text_and_many_give_the_same(data, tmp_path):
    Classification(quick(data)).train(tmp_path / "model")
    model = Classifier.from_folder(tmp_path / "model")
    texts = [text for text, _ in sentences(20, 5)] + ["cat " * 400]
    whole = model.probabilities(texts)
    alone = torch.cat([model.probabilities([text]) for text in texts])
    torch.testing.assert_close(whole, alone, atol=1e-6, rtol=0)


def test_a_checkpoint_is_a_beginning(data, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "red", "old", "big", "sees", *ANIMALS, *TOOLS]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes))
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words))
    body, _ = begin_from(tmp_path / "bert", "sequence_class", {"n_labels": 2, "pooling": "mean"})
    assert torch.equal(body.embeddings.tokens.weight, theirs.embeddings.word_embeddings.weight)
    scores = Classification(quick(data, start_from=tmp_path / "bert")).train(tmp_path / "model")
    assert scores["accuracy"] > 90
    assert Classifier.from_folder(tmp_path / "model").run(["the old cow", "a big saw"]) == ["animal", "tool"]


def test_a_run_that_was_stopped_ends_the_same(data, tmp_path):
    Classification(quick(data)).train(tmp_path / "whole")
    from glassformer.training.trainer import Trainer

    stops, plain = [17, 81], Trainer._update

    def update(self):
        if stops and self.state.position == stops[0]:
            stops.pop(0)
            self.save()
            raise KeyboardInterrupt
        plain(self)

    Trainer._update = update
    try:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                Classification(quick(data)).train(tmp_path / "parts")
        Classification(quick(data)).train(tmp_path / "parts")
    finally:
        Trainer._update = plain
    one, two = (Classifier.from_folder(tmp_path / name).model for name in ("whole", "parts"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        (["text\tlabel", "cat\tx", "\ty"], BadRecordError, r"data.tsv:3: empty text"),
        (["text\tlabel", "cat\tx", "dog"], BadRecordError, r"data.tsv:3: 1 columns, expected 2"),
        (["words\tlabel", "cat\tx"], BadRecordError, "no column 'text' in the header"),
        (["text\tlabel", *["cat\tx"] * 200], ValueError, "all texts have the labels \\['x'\\]"),
    ],
)
def test_bad_data_is_explained(lines, error, message, tmp_path):
    (tmp_path / "data.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(error, match=message):
        Classification(quick(LabelledData(data=(tmp_path / "data.tsv",)))).train(tmp_path / "model")


def test_a_label_that_was_not_learned_is_named(data, tmp_path):
    Classification(quick(data)).train(tmp_path / "model")
    (tmp_path / "other.tsv").write_text("text\tlabel\nthe cat\tplant\n")
    with pytest.raises(ValueError, match=r"other.tsv:2: the label 'plant' was not learned"):
        Classifier.from_folder(tmp_path / "model").score(replace(data, data=(tmp_path / "other.tsv",)).examples())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_scores_are_what_they_are_called(pairs):
    found, true = zip(*pairs, strict=True)
    scores = score_classes(found, true)
    assert scores["accuracy"] == pytest.approx(100 * sum(a == b for a, b in pairs) / len(pairs))
    f1 = []
    for label in {*found, *true}:
        hits = sum(a == b == label for a, b in pairs)
        precision = hits / max(found.count(label), 1)
        recall = hits / max(true.count(label), 1)
        f1.append(0.0 if not hits else 2 * precision * recall / (precision + recall))
    assert scores["macro_f1"] == pytest.approx(100 * sum(f1) / len(f1))


def test_the_command_line_trains_scores_and_runs(data, tmp_path, monkeypatch, capsys):
    import sys

    from glassformer.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "[model]\nvocab_size = 400\nd_model = 32\nd_ff = 48\n"
        "[train]\nupdates = 60\nwarmup = 5\nlr = 5e-3\nmetric = 'accuracy'\n"
    )
    train, valid = data.data[0], data.valid[0]
    told = call(
        "train", "classification", "--recipe", recipe, "--data", train, "--valid", valid, "--out", tmp_path / "m"
    )
    assert "accuracy" in told
    assert json.loads(call("eval", tmp_path / "m", "--data", valid, "--json"))["accuracy"] > 50
    monkeypatch.setattr(sys, "stdin", io.StringIO("the old cat\n\n"))
    assert call("run", tmp_path / "m").splitlines() in (["animal", ""], ["tool", ""])
