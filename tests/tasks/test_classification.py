"""Classification: training, several labels, pairs of texts, bad data and the command line."""

import io
import json
import random
import re
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.readers.records import BadRecordError
from glassformer.metrics.accuracy import score_classes
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.load import load
from glassformer.tasks.classification import Classification, ClassificationConfig, LabeledData
from glassformer.tasks.warm_start import load_encoder
from glassformer.training.run_folder import RunFolder

ANIMALS, TOOLS = ["cat", "dog", "cow", "hen"], ["saw", "axe", "awl", "nail"]


def sentences(count, seed=0):
    draw = random.Random(seed)
    for _ in range(count):
        label, words = draw.choice([("animal", ANIMALS), ("tool", TOOLS)])
        others = draw.choices(["the", "a", "red", "old", "big", "sees"], k=draw.randint(1, 6))
        others.insert(draw.randint(0, len(others)), draw.choice(words))
        yield " ".join(others), label


def write_data(folder):
    for name, count, seed in (("train.tsv", 300, 0), ("valid.tsv", 60, 1)):
        lines = [f"{text}\t{label}" for text, label in sentences(count, seed)]
        (folder / name).write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    return LabeledData(data=(folder / "train.tsv",), valid=(folder / "valid.tsv",))


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path)


def quick(data, **changes):
    config = ClassificationConfig(data=data)
    train = replace(config.train, updates=120, eval_every=60, save_every=60, warmup=10, max_tokens=512, lr=5e-3)
    return replace(
        config, train=train, model=replace(config.model, vocab_size=400, d_model=32, d_ff=48, dropout=0.1), **changes
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The data of a trained classifier, its folder and its scores."""
    folder = tmp_path_factory.mktemp("classifier")
    data = write_data(folder)
    return data, folder / "model", Classification(quick(data)).train(folder / "model")


def test_it_learns_and_the_loaded_model_scores_the_same(trained):
    data, folder, scores = trained
    assert scores["accuracy"] > 95
    model = load(folder)
    assert isinstance(model, Classifier)
    assert model.run(["the old cat", "", "a red axe"]) == ["animal", "", "tool"]
    ((prediction,),) = model.classify(["the old cat"])
    assert 0.5 < prediction.probability <= 1
    assert model.score([*data.splits().valid]) == scores
    assert "accuracy" in (folder / "README.md").read_text(encoding="utf-8")


def test_one_text_and_many_give_the_same(trained):
    model = Classifier.from_folder(trained[1])
    texts = [text for text, _ in sentences(20, 5)] + ["cat " * 400]
    whole = model.probabilities(texts)
    alone = torch.cat([model.probabilities([text]) for text in texts])
    torch.testing.assert_close(whole, alone, atol=1e-6, rtol=0)


def test_training_starts_from_a_checkpoint(data, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "red", "old", "big", "sees", *ANIMALS, *TOOLS]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes))
    theirs.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    body, _ = load_encoder(tmp_path / "bert", "sequence_class", {"n_labels": 2, "pooling": "mean"})
    assert torch.equal(body.embeddings.tokens.weight, theirs.embeddings.word_embeddings.weight)
    scores = Classification(quick(data, start_from=tmp_path / "bert")).train(tmp_path / "model")
    assert scores["accuracy"] > 90
    assert Classifier.from_folder(tmp_path / "model").run(["the old cow", "a big saw"]) == ["animal", "tool"]


def test_an_interrupted_run_ends_with_the_same_weights(trained, tmp_path):
    data, whole, _ = trained
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
    one, two = (Classifier.from_folder(folder).model for folder in (whole, tmp_path / "parts"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        (["text\tlabel", "cat\tx", "\ty"], BadRecordError, r"data.tsv:3: empty text"),
        (["text\tlabel", "cat\tx", "dog"], BadRecordError, r"data.tsv:3: 1 column, expected 2"),
        (["words\tlabel", "cat\tx"], BadRecordError, "no column 'text' in the header"),
        (["text\tlabel", *["cat\tx"] * 200], ValueError, "all texts have the labels \\['x'\\]"),
    ],
)
def test_bad_data_is_refused_with_a_reason(lines, error, message, tmp_path):
    (tmp_path / "data.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(error, match=message):
        Classification(quick(LabeledData(data=(tmp_path / "data.tsv",)))).train(tmp_path / "model")


def test_a_label_that_was_not_learned_is_named(trained, tmp_path):
    data, folder, _ = trained
    (tmp_path / "other.tsv").write_text("text\tlabel\nthe cat\tplant\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"other.tsv:2: the label 'plant' was not learned"):
        Classifier.from_folder(folder).score(replace(data, data=(tmp_path / "other.tsv",)).examples())


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return (path,)


def test_a_text_may_have_several_labels_or_none(tmp_path):
    def records(count, seed):
        draw = random.Random(seed)
        for _ in range(count):
            named = [pair for pair in (("animal", ANIMALS), ("tool", TOOLS)) if draw.random() < 0.5]
            words = draw.choices(["red", "old", "big"], k=2) + [draw.choice(words) for _, words in named]
            draw.shuffle(words)
            yield " ".join(words), [label for label, _ in named]

    data = LabeledData(
        data=write_jsonl(tmp_path / "train.jsonl", [{"text": t, "label": ls} for t, ls in records(400, 0)]),
        valid=write_jsonl(tmp_path / "valid.jsonl", [{"text": t, "label": ls} for t, ls in records(60, 1)]),
        multi_label=True,
    )
    config = quick(data)
    task = Classification(replace(config, train=replace(config.train, updates=240)))
    scores = task.train(tmp_path / "model")
    assert [*scores.values] == ["micro_f1", "macro_f1", "accuracy"]
    assert scores["accuracy"] > 90
    assert task.baseline(data.splits())[1]["accuracy"] < scores["accuracy"]
    model = Classifier.from_folder(tmp_path / "model")
    assert model.run(["red cat axe old", "old dog big", "red old"]) == ["animal,tool", "animal", ""]
    # In a table, commas separate the labels.
    lines = [f"{text}\t{' , '.join(labels)}" for text, labels in records(60, 1)]
    (tmp_path / "valid.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    table = replace(data, data=(tmp_path / "valid.tsv",)).examples()
    assert [example.labels for example in table] == [tuple(labels) for _, labels in records(60, 1)]
    assert model.score(table) == scores


def test_the_order_of_the_two_texts_matters(tmp_path):
    """The label says which of the two texts names the animal, so a model must tell the first from the second."""
    for name, count, seed in (("train.csv", 500, 0), ("valid.csv", 60, 1)):
        draw = random.Random(seed)
        lines = ["one,label,other"]
        for _ in range(count):
            pair = [draw.choice(ANIMALS), draw.choice(TOOLS)]
            first = draw.random() < 0.5
            lines.append(f'"{pair[not first]}, old",{"first" if first else "second"},{pair[first]}')
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = LabeledData(
        data=(tmp_path / "train.csv",), valid=(tmp_path / "valid.csv",), text_column="one", second_column="other"
    )
    assert data.examples()[0].text.endswith(", old")  # CSV's quotes are read
    scores = Classification(quick(data)).train(tmp_path / "model")
    assert scores["accuracy"] > 95
    model = Classifier.from_folder(tmp_path / "model")
    assert model.model.config.token_types == 2
    ((read),) = model.read([("cat", "saw")])
    assert {0, 1} == {*read.token_types}
    assert model.run(["cow, old\tsaw", "saw, old\tcow"]) == ["first", "second"]


@pytest.mark.parametrize(
    ("record", "multi_label", "message"),
    [
        ({"text": "a"}, False, "data.jsonl:2: no text under 'label'"),
        ({"text": ["a"], "label": "x"}, False, "data.jsonl:2: no text under 'text'"),
        ({"text": "a", "label": 3}, True, "data.jsonl:2: no labels under 'label': expected a list"),
        ({"text": "a", "label": ["x", 3]}, True, "data.jsonl:2: no labels under 'label': expected a list"),
        (["a", "x"], False, "data.jsonl:2: not a JSON object"),
    ],
)
def test_bad_json_is_refused_or_skipped(record, multi_label, message, tmp_path):
    paths = write_jsonl(tmp_path / "data.jsonl", [{"text": "a", "label": "x"}, record, {"text": "b", "label": "y"}])
    data = LabeledData(data=paths, multi_label=multi_label)
    with pytest.raises(BadRecordError, match=message):
        data.examples()
    kept = replace(data, on_bad="skip").examples()
    assert [(example.text, example.labels) for example in kept] == [("a", ("x",)), ("b", ("y",))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_accuracy_and_f1_equal_their_definitions(pairs):
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
        "[train]\nupdates = 60\nwarmup = 5\nlr = 5e-3\nmetric = 'accuracy'\n",
        encoding="utf-8",
    )
    train, valid = data.data[0], data.valid[0]
    told = call(
        "train", "classification", "--recipe", recipe, "--data", train, "--valid", valid, "--out", tmp_path / "m"
    )
    assert "accuracy" in told
    told = json.loads(call("eval", tmp_path / "m", "--data", valid, "--json", "--quiet"))
    assert told["accuracy"] > 50
    rows = told["confusion"]["rows"]
    assert told["confusion"]["columns"] == [*rows] == ["animal", "tool"]
    right = sum(row[place] for place, row in enumerate(rows.values()))
    assert told["accuracy"] == pytest.approx(100 * right / sum(map(sum, rows.values())))
    *shown, last = call("eval", tmp_path / "m", "--data", valid).splitlines()
    assert re.fullmatch(rf"scored on \d+ examples from {re.escape(str(valid))}", last)
    assert last == f"scored on {told['scored_on']}"
    assert shown[-2].split() == ["animal", *map(str, rows["animal"])]
    monkeypatch.setattr(sys, "stdin", io.StringIO("the old cat\n\n"))
    assert call("run", tmp_path / "m").splitlines() in (["animal", ""], ["tool", ""])


def test_a_note_counts_the_skipped_records(data, tmp_path):
    with data.data[0].open("a") as stream:
        stream.write("\ttool\n")
    for chosen in (data, replace(data, valid=())):
        task = Classification(quick(replace(chosen, on_bad="skip")))
        assert "skipped 1 bad record: 1 with empty text" in task.prepare(RunFolder(tmp_path / "run")).notes
