"""Answering: training, scores, data files and generated stories."""

import io
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.corpora.synthetic_stories import generate_stories
from glassformer.data.readers.records import BadRecordError
from glassformer.pipelines.answerer import Answerer
from glassformer.pipelines.examples import as_source
from glassformer.pipelines.load import load
from glassformer.tasks.answering import Answering, AnsweringConfig, QuestionData
from glassformer.text.sentences import split_sentences

COLOURS, THINGS = ["red", "blue", "green", "white"], ["hat", "car", "cup", "door", "bird"]


def questions(count, seed=0):
    draw = random.Random(seed)
    for _ in range(count):
        thing, colour = draw.choice(THINGS), draw.choice(COLOURS)
        context = f"Here is a {thing}. It is {colour}."
        if draw.random() < 0.2:
            yield {"question": "How old is it?", "context": context, "answer": [], "why": "Nobody tells."}
        else:
            answer = [colour, f"bright {colour}"]
            yield {"question": "What colour is it?", "context": context, "answer": answer, "why": f"It is {colour}."}


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    paths = [write(folder / name, questions(count, seed)) for seed, (name, count) in enumerate(NAMES)]
    return QuestionData(
        data=(paths[0],), valid=(paths[1],), number_sentences=True, last_sentences=3, evidence_column="why"
    )


NAMES = [("train.jsonl", 300), ("valid.jsonl", 40)]


def quick(data):
    config = AnsweringConfig(data=data)
    sizes = {"vocab_size": 400, "d_model": 32, "d_ff": 48, "n_encoder_layers": 1, "n_decoder_layers": 1, "dropout": 0.0}
    train = replace(config.train, updates=100, eval_every=50, save_every=50, warmup=10, max_tokens=1024, lr=1e-2)
    return replace(config, train=train, model=replace(config.model, embedding_dropout=0.0, **sizes))


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    scores = Answering(quick(data)).train(folder)
    assert scores["exact_match"] > 95
    assert scores["f1"] >= scores["exact_match"]
    return folder


def test_it_learns_answers_and_unanswerable_questions(data, folder):
    model = load(folder)
    assert isinstance(model, Answerer)
    context = "Here is a cup. It is green."
    assert model.answer("What colour is it?", context) == "green"
    assert model.run([f"What colour is it?\t{context}", "", f"How old is it?\t{context}"]) == ["green", "", ""]
    assert model.score(list(data.splits().valid))["exact_match"] > 95
    assert "exact match" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_question_has_the_layout_of_the_training_data(data, folder):
    model = load(folder)
    assert model.settings() == {"number_sentences": True, "last_sentences": 3, "quotes": True}
    example = next(iter(data.splits().valid))
    assert example.source == as_source(example.question, example.context, **data.layout)
    # Sentences before the last three are not read, so they change nothing.
    context = "It is red. " * 5 + "Here is a cup. Look at it. It is green."
    assert model.answer("What colour is it?", context) == "green"


def test_an_answer_has_its_evidence(data, folder, tmp_path):
    model = load(folder)
    asked = [("What colour is it?", "Here is a cup. It is green."), ("How old is it?", "Here is a hat. It is red.")]
    assert model.reason(asked) == [("It is green.", "green"), ("Nobody tells.", "")]
    # Scoring needs no evidence.
    path = write(tmp_path / "bare.jsonl", [{"question": asked[0][0], "context": asked[0][1], "answer": "green"}])
    assert model.score(replace(data, data=(path,)).examples())["exact_match"] == 100
    # A model that does not quote returns its whole text as the answer.
    plain = Answerer(model.model, model.source_tokenizer, model.target_tokenizer, **data.layout, quotes=False)
    assert plain.answers(asked[:1]) == ["It is green.\n green"]


def test_a_corpus_has_no_evidence():
    with pytest.raises(ValueError, match="made-stories has none"):
        QuestionData(corpus="made-stories", evidence_column="why")


def test_evidence_is_required_in_every_training_record(tmp_path):
    good = {"question": "q", "context": "c", "answer": "a", "why": " b  c "}
    path = write(tmp_path / "data.jsonl", [good, {"question": "q", "context": "c", "answer": "a"}])
    data = QuestionData(data=(path,), valid=(path,), evidence_column="why", on_bad="skip")
    (kept,) = data.splits().train
    assert kept.target == "b c\n a"
    with pytest.raises(BadRecordError, match=r"data.jsonl:2: no text under 'why'"):
        list(replace(data, on_bad="error").splits().train)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "", "context": "a", "answer": "b"}, "data.jsonl:2: empty question"),
        ({"question": "q", "answer": "b"}, "data.jsonl:2: no text under 'context'"),
        ({"question": "q", "context": "a"}, "data.jsonl:2: no text under 'answer'"),
        ({"question": "q", "context": "a", "answer": " "}, "data.jsonl:2: empty answer: .* an empty list"),
        ({"question": "q", "context": "a", "answer": ["b", 3.5]}, "data.jsonl:2: no text under 'answer'"),
    ],
)
def test_bad_records_name_their_line(record, message, tmp_path):
    good = {"question": "q", "context": "c", "answer": 7}
    path = write(tmp_path / "data.jsonl", [good, record])
    with pytest.raises(BadRecordError, match=message):
        QuestionData(data=(path,)).examples()
    (kept,) = QuestionData(data=(path,), on_bad="skip").examples()
    assert kept.answers == ("7",)


def test_a_line_that_is_no_question_is_refused(folder):
    with pytest.raises(ValueError, match="expected a question, a tab and a text"):
        load(folder).run(["What colour is it?"])


def played(story):
    """Replay a story sentence by sentence: the place of each person and thing, and who carries what."""
    where, has, lies = {}, {}, {}
    for sentence in split_sentences(story):
        words = sentence.rstrip(".").split()
        who, last = words[0], words[-1]
        if words[1] == "gave":
            has[words[3]] = last
        elif words[2] == "to":
            where[who] = last
        elif words[1] in ("put", "dropped", "left"):
            assert has.pop(last) == who
            lies[last] = where[who]
        else:
            assert last not in has
            assert lies.pop(last, where[who]) == where[who]  # things are taken where they lie
            has[last] = who
    return where, has, lies


@given(st.integers(0, 10**6))
def test_the_answers_of_generated_stories_follow_from_their_sentences(seed):
    for asked in generate_stories(5, seed=seed):
        where, has, lies = played(asked.context)
        name = asked.question.rstrip("?").split()[-1]
        if asked.question.startswith("Where is the"):
            answer = lies[name] if name in lies else where.get(has.get(name))
        elif asked.question.startswith("Where"):
            answer = where.get(name)
        elif asked.question.startswith("Who"):
            answer = has.get(name)
        else:
            carried = [thing for thing, owner in has.items() if owner == asked.question.split()[2]]
            assert len(carried) < 2
            answer = carried[0] if carried else None
        assert asked.answer == (answer or "")
        if answer:
            assert asked.context[asked.start :].startswith(answer)
        else:
            assert asked.start == -1


def test_the_baseline_of_the_demo_is_weak():
    config = Answering.demo()
    splits = config.data.splits()
    how, scores = Answering(config).baseline(splits)
    assert "most frequent" in how
    assert 5 < scores["exact_match"] < 30  # as many as have no answer
    assert not {*(e.source for e in splits.train)} & {*(e.source for e in splits.test)}


def test_babi_is_converted(tmp_path):
    (tmp_path / "en").mkdir()
    lines = ["1 Mary went home.", "2 John left.", "3 Where is Mary? \thome\t1", "1 Ann sat.", "2 Who sat?\tAnn,Bob\t1"]
    for side in ("train", "test"):
        (tmp_path / "en" / f"qa7_counting_{side}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tool = Path(__file__).parents[2] / "tools" / "convert_babi.py"
    subprocess.run([sys.executable, tool, tmp_path, tmp_path / "out"], check=True, capture_output=True)
    found = [json.loads(line) for line in (tmp_path / "out" / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert found == [
        {
            "question": "Where is Mary?",
            "context": "Mary went home. John left.",
            "answer": "home",
            "evidence": "Mary went home.",
            "task": 7,
        },
        {"question": "Who sat?", "context": "Ann sat.", "answer": "Ann,Bob", "evidence": "Ann sat.", "task": 7},
    ]


def test_the_command_line_scores_and_runs(data, folder, monkeypatch, capsys):
    from glassformer.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    assert json.loads(call("eval", folder, "--data", data.valid[0], "--json", "--quiet"))["exact_match"] > 95
    assert re.search(r"exact match \d+", call("eval", folder, "--data", data.valid[0]))
    monkeypatch.setattr(sys, "stdin", io.StringIO("What colour is it?\tHere is a car. It is red.\n\n"))
    assert call("run", folder).splitlines() == ["red", ""]
