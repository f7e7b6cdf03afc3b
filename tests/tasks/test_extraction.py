"""Extraction: training, windows of long texts, data files and the command line."""

import io
import json
import math
import random
import sys
from dataclasses import replace

import pytest
import transformers

from glassformer.data.readers.records import BadRecordError
from glassformer.pipelines.extractor import Extractor
from glassformer.pipelines.load import load
from glassformer.tasks.extraction import Extraction, ExtractionConfig, SpanData
from glassformer.training.run_folder import RunFolder

COLOURS, THINGS = ["red", "dark blue", "green", "white"], ["hat", "car", "cup", "door", "bird"]


def questions(count, seed=0):
    draw = random.Random(seed)
    for _ in range(count):
        thing, colour = draw.choice(THINGS), draw.choice(COLOURS)
        context = f"{'It is here. ' * draw.randint(0, 2)}We saw a {colour} {thing} there."
        start = context.index(colour)
        if draw.random() < 0.2:
            yield "How old is it?", context, []
        else:
            yield "What colour is it?", context, [{"text": colour, "answer_start": start}]


def squad(asked):
    paragraphs = [
        {
            "context": context,
            "qas": [{"id": f"q{number}", "question": question, "is_impossible": not answers, "answers": answers}],
        }
        for number, (question, context, answers) in enumerate(asked)
    ]
    return {"version": "v2.0", "data": [{"title": "things", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, count, seed in (("train.json", 300, 0), ("valid.json", 40, 1)):
        (folder / name).write_text(json.dumps(squad(questions(count, seed))), encoding="utf-8")
    return SpanData(data=(folder / "train.json",), valid=(folder / "valid.json",))


def quick(data):
    config = ExtractionConfig(data=data, overlap=6)
    sizes = {"vocab_size": 400, "d_model": 32, "d_ff": 48, "n_encoder_layers": 2, "max_len": 24, "dropout": 0.0}
    train = replace(config.train, updates=100, eval_every=50, save_every=50, warmup=10, max_tokens=1024, lr=5e-3)
    return replace(config, train=train, model=replace(config.model, embedding_dropout=0.0, **sizes))


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    scores = Extraction(quick(data)).train(folder)
    assert scores["exact_match"] > 95
    return folder


def test_it_learns_the_places_of_answers_and_unanswerable_questions(data, folder):
    model = load(folder)
    assert isinstance(model, Extractor)
    assert model.abstains
    context = "We saw a dark blue car there."
    assert model.answer("What colour is it?", context) == "dark blue"
    assert model.run([f"What colour is it?\t{context}", "", f"How old is it?\t{context}"]) == ["dark blue", "", ""]
    (found,) = model.find([("What colour is it?", context)])
    assert context[found.start :].startswith(found.text)
    assert model.score(list(data.splits().valid))["exact_match"] > 95


def test_long_texts_are_read_in_windows(folder):
    model = load(folder)
    context = "It is here. " * 12 + "We saw a green cup there. " + "It is here. " * 12
    (several,) = model.windows([("What colour is it?", context)])
    assert len(several) > 4
    assert max(map(len, several)) <= 24
    assert model.answer("What colour is it?", context) == "green"


def test_one_question_and_many_give_the_same(folder):
    model = load(folder)
    asked = [(question, context) for question, context, _ in questions(20, 7)]
    whole, alone = model.find(asked), [model.find([one])[0] for one in asked]
    assert [one.text for one in whole] == [one.text for one in alone]
    assert [one.score for one in whole] == pytest.approx([one.score for one in alone], abs=1e-4)


def test_the_notes_count_windows_and_unanswerable_questions(data, tmp_path):
    config = quick(data)
    ready = Extraction(replace(config, model=replace(config.model, max_len=16))).prepare(RunFolder(tmp_path))
    assert "have no answer" in ready.notes[0]
    assert "longer than 16 tokens, and are read in windows" in ready.notes[1]


def test_a_note_counts_the_skipped_records(data, tmp_path):
    told = squad([*questions(60), ("q", CONTEXT, [{"text": "cow", "answer_start": 0}])])
    (tmp_path / "some.json").write_text(json.dumps(told), encoding="utf-8")
    config = quick(SpanData(data=(tmp_path / "some.json",), valid=data.valid, on_bad="skip"))
    (note,) = [note for note in Extraction(config).prepare(RunFolder(tmp_path)).notes if "skipped" in note]
    assert note.startswith("skipped 1 bad record: 1 with the answer 'cow' is not at character 0")


def test_squad_1_data_trains_a_model_that_never_abstains(tmp_path):
    told = squad((q, c, a) for q, c, a in questions(60) if a)
    for paragraph in told["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["is_impossible"]
    (tmp_path / "v1.json").write_text(json.dumps(told), encoding="utf-8")
    data = SpanData(data=(tmp_path / "v1.json",), valid=(tmp_path / "v1.json",))
    config = quick(data)
    ready = Extraction(replace(config, train=replace(config.train, updates=1))).prepare(RunFolder(tmp_path))
    assert not ready.pipeline.abstains
    assert all(one.text for one in ready.pipeline.find([("Who?", "Nobody knows it.")] * 3))


def test_training_starts_from_a_checkpoint(data, tmp_path):
    words = "it is here . we saw a there what colour how old ? red dark blue green white hat car cup door bird"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words.split()]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.BertConfig(vocab_size=len(names), max_position_embeddings=20, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(names), encoding="utf-8")
    task = Extraction(replace(quick(data), start_from=tmp_path / "bert"))
    ready = task.prepare(RunFolder(tmp_path))
    examples = [example for example in ready.test if example.answers]
    for row in task.rows(ready.pipeline, examples):
        assert len(row.ids) <= 20
        begin, end = row.answer
        told = " ".join(names[index] for index in row.ids[begin : end + 1])
        assert told in (*COLOURS, "[CLS]")  # the first token stands for a window without the answer
    assert math.isfinite(task.loss(ready.pipeline.model, ready.batches[0]).item())


CONTEXT = "the cat saw the dog"


@pytest.mark.parametrize(
    ("answer", "starts"),
    [
        ("the", (0,)),
        (["dog", "the dog"], (16, 12)),
        ([{"text": "the", "answer_start": 12}], (12,)),
        ({"text": ["the", "cat"], "answer_start": [12, 4]}, (12, 4)),
        ([], ()),
        ({"text": [], "answer_start": []}, ()),
    ],
)
def test_the_place_of_an_answer_can_be_given_in_several_ways(answer, starts, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"question": "q", "context": CONTEXT, "answer": answer}) + "\n", encoding="utf-8")
    ((example),) = SpanData(data=(path,)).examples()
    assert example.starts == starts


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("cow", r"data.jsonl:1: the answer 'cow' is not in its context"),
        ([{"text": "cat", "answer_start": 5}], r"data.jsonl:1: the answer 'cat' is not at character 5 .*'at '"),
        ([{"text": "cat", "answer_start": "4"}], r"data.jsonl:1: answer_start is '4': expected a whole number"),
        ("", r"data.jsonl:1: empty answer: .*empty list"),
        ({"text": ["cat"]}, r"data.jsonl:1: no answers under 'answer'"),
        (None, r"data.jsonl:1: no text under 'answer'"),
    ],
)
def test_an_answer_that_the_text_lacks_is_refused_with_file_and_line(answer, message, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"question": "q", "context": CONTEXT, "answer": answer}) + "\n", encoding="utf-8")
    with pytest.raises(BadRecordError, match=message + r".*on_bad='skip'"):
        SpanData(data=(path,)).examples()
    assert SpanData(data=(path,), on_bad="skip").examples() == []


def test_squad_names_the_question(tmp_path):
    told = squad([("q", CONTEXT, [{"text": "cat", "answer_start": 3}])])
    (tmp_path / "bad.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"bad.json: data\[0\].paragraphs\[0\]: question q0: the answer 'cat'"):
        SpanData(data=(tmp_path / "bad.json",)).examples()
    told["data"][0]["paragraphs"][0]["qas"][0]["answers"] = []
    (tmp_path / "bad.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(BadRecordError, match="question q0: no answers, and not is_impossible"):
        SpanData(data=(tmp_path / "bad.json",)).examples()
    for text in ("[1, 2]", "{", '{"data": 3}', '{"data": [{}]}'):
        (tmp_path / "bad.json").write_text(text, encoding="utf-8")
        with pytest.raises(BadRecordError, match="SQuAD's JSON"):
            SpanData(data=(tmp_path / "bad.json",)).examples()


def test_the_baseline_of_the_demo_is_weak():
    config = Extraction.demo()
    _, scores = Extraction(config).baseline(config.data.splits())
    assert 5 < scores["exact_match"] < 45


def test_the_command_line_scores_and_runs(data, folder, monkeypatch, capsys):
    from glassformer.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    assert json.loads(call("eval", folder, "--data", data.valid[0], "--json", "--quiet"))["exact_match"] > 95
    monkeypatch.setattr(sys, "stdin", io.StringIO("What colour is it?\tWe saw a red hat there.\n\n"))
    assert call("run", folder).splitlines() == ["red", ""]
