"""Summarization: training, references, sentences, bad data and the command line."""

import io
import json
import random
import sys
from collections import Counter
from dataclasses import replace

import pytest

from glassformer.data.corpora.docstrings import docstrings
from glassformer.data.readers.records import BadRecordError
from glassformer.pipelines.load import load
from glassformer.pipelines.summarizer import Summarizer
from glassformer.tasks.summarization import Summarization, SummarizationConfig, SummaryData, copies, lead
from glassformer.text.sentences import split_sentences
from glassformer.training.run_folder import RunFolder

ANIMALS, PLACES = ["cat", "dog", "cow", "hen"], ["house", "garden", "street"]


def texts(count, seed=0):
    draw = random.Random(seed)
    for _ in range(count):
        animal, place = draw.choice(ANIMALS), draw.choice(PLACES)
        source = [f"There was a {animal}.", "It was old.", f"It came to the {place}."]
        yield {"source": source, "target": [f"the {animal}", f"an old {animal}"]}


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    train, valid = write(folder / "train.jsonl", texts(200)), write(folder / "valid.jsonl", texts(30, 1))
    return SummaryData(data=(train,), valid=(valid,))


def quick(data):
    config = SummarizationConfig(data=data)
    sizes = {"vocab_size": 400, "d_model": 32, "d_ff": 48, "n_encoder_layers": 1, "n_decoder_layers": 1, "max_len": 16}
    train = replace(config.train, updates=90, eval_every=45, save_every=45, warmup=10, max_tokens=1024, lr=1e-2)
    return replace(config, train=train, model=replace(config.model, dropout=0.0, embedding_dropout=0.0, **sizes))


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    scores = Summarization(quick(data)).train(folder)
    assert scores["rouge1"] > 90
    return folder


def test_it_learns_and_the_loaded_model_scores_the_same(data, folder):
    model = load(folder)
    assert isinstance(model, Summarizer)
    found = model.run(["There was a hen. It was old. It came to the street.", ""])
    assert found[0] in ("the hen", "an old hen")
    assert found[1] == ""
    examples = list(data.splits().valid)
    scores = model.score(examples)
    assert list(scores.values) == ["rouge1", "rouge2", "rougeL"]
    assert scores["rouge1"] > lead(examples, 1)["rouge1"]
    assert "ROUGE-1" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_note_counts_the_texts_that_were_cut(data, tmp_path):
    config = quick(data)
    notes = Summarization(replace(config, model=replace(config.model, max_len=12))).prepare(RunFolder(tmp_path)).notes
    assert "400 pairs to learn from (400 too long, and cut)" in notes[0]  # 200 texts with two summaries each


def test_all_references_are_learned_and_the_best_one_is_scored(data):
    splits = data.splits()
    learned = list(splits.train)
    assert {example.target for example in learned[:2]} == {*learned[0].references}
    examples = list(splits.valid)
    assert len(examples) == 30
    assert all(example.target == example.references[0] for example in examples)


def test_a_text_is_a_list_of_sentences_or_is_split(tmp_path):
    records = [
        {"text": "One is here. Two  are\nthere! 3 are e.g. far away.", "tldr": "x"},
        {"text": ["One", " ", "two"], "tldr": ["x", "y"]},
    ]
    path = write(tmp_path / "data.jsonl", records)
    one, two = SummaryData(data=(path,), source_column="text", target_column="tldr").examples()
    assert one.sentences == ("One is here.", "Two are there!", "3 are e.g. far away.")
    assert one.source == " ".join(one.sentences)
    assert (two.source, two.sentences, two.references) == ("One two", ("One", "two"), ("x", "y"))


def test_the_sentence_closest_to_the_summary_can_be_the_target(tmp_path):
    record = {"source": ["Many tried.", "We show that cats sleep.", "Cats are old."], "target": "cats sleep a lot"}
    (learned,) = SummaryData(
        data=(write(tmp_path / "a.jsonl", [record]),),
        valid=(write(tmp_path / "b.jsonl", [record]),),
        best_sentence=True,
    ).splits()[0]
    assert learned.target == "We show that cats sleep."
    assert learned.references == ("cats sleep a lot",)


def test_copied_summaries_are_sentences_of_their_sources(data):
    example = data.examples()[0]
    found = list(copies(example, 6))
    assert found == list(copies(example, 6))
    assert len({one.source for one in found}) > 1
    words = Counter(" ".join(example.sentences).split())
    for number, one in enumerate(found):
        asked, _, text = one.source.partition("\n ")
        assert one.target.startswith(asked)
        assert one.target in text
        assert Counter(text.split()) == words
        if number % 2 == 0:
            assert one.target in example.sentences
    assert len(list(replace(data, copy_sentences=3).splits().train)) == 200 * (2 + 3)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"source": "", "target": "b"}, "data.jsonl:2: empty source"),
        ({"source": [], "target": "b"}, "data.jsonl:2: empty source"),
        ({"source": ["a", 3], "target": "b"}, "data.jsonl:2: no text under 'source'"),
        ({"source": "a", "target": [" "]}, "data.jsonl:2: empty target"),
        ({"source": "a"}, "data.jsonl:2: no text under 'target'"),
    ],
)
def test_bad_records_name_their_line(record, message, tmp_path):
    path = write(tmp_path / "data.jsonl", [{"source": "c", "target": "t"}, record])
    with pytest.raises(BadRecordError, match=message):
        SummaryData(data=(path,)).examples()
    assert len(SummaryData(data=(path,), on_bad="skip").examples()) == 1


def test_docstrings_are_read_without_running_code(tmp_path):
    long = "Much more is to be said about it, and here it is said."
    (tmp_path / "a.py").write_text(
        f'raise SystemExit\n\ndef f():\n    """Do a thing.\n\n    {long}\n    """\n', encoding="utf-8"
    )
    (tmp_path / "b.py").write_text(f'class C:\n    """Two lines\n    of it.\n\n    {long}\n    """\n', encoding="utf-8")
    (tmp_path / "c.py").write_text("this is no Python\n", encoding="utf-8")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "d.py").write_text(f'"""Test that all.\n\n{long} And more."""\n', encoding="utf-8")
    assert docstrings(tmp_path) == ((long, "Do a thing."),)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no Python files with docstrings"):
        docstrings(tmp_path / "empty")


def test_sentences_are_split_at_their_ends():
    assert split_sentences('He said "No." Then (i.e. later) 3.5 came. Dr. Who? Yes') == [
        'He said "No."',
        "Then (i.e. later) 3.5 came.",
        "Dr. Who?",
        "Yes",
    ]


def test_the_command_line_scores_and_runs(data, folder, monkeypatch, capsys):
    from glassformer.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    assert json.loads(call("eval", folder, "--data", data.valid[0], "--json", "--quiet"))["rouge1"] > 80
    monkeypatch.setattr(sys, "stdin", io.StringIO("There was a cow. It was old. It came to the house.\n\n"))
    told = call("run", folder, "--beam", "1").splitlines()
    assert told[0].endswith("cow")
    assert told[1] == ""
