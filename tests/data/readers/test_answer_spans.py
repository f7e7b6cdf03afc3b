"""Extractive questions from SQuAD files and records."""

import json

import pytest

from glassformer.data.readers.answer_spans import SpanQuestion, SpanReader
from glassformer.data.readers.records import BadRecordError

COLUMNS = ("question", "context", "answer")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"\n{\n", r"a\.json:3 is not SQuAD's JSON"),
        (b'{"data": %s}' % (b"9" * 5000), r"a\.json is not SQuAD's JSON"),
        (b'{"data": [], "data": []}', r"a\.json: the key 'data' occurs twice in an object"),
        (b"[" * 100_000, r"a\.json is not SQuAD's JSON"),
    ],
)
def test_squad_files_that_are_not_json_are_named(tmp_path, contents, message):
    (tmp_path / "a.json").write_bytes(contents)
    with pytest.raises(BadRecordError, match=message):
        list(SpanReader([tmp_path / "a.json"], COLUMNS))


def write_squad(path, *questions):
    """Write a SQuAD file with these questions about one context."""
    path.write_text(
        json.dumps({"data": [{"paragraphs": [{"context": " a cat, a dog", "qas": questions}]}]}), encoding="utf-8"
    )
    return path


def test_squad_answers_keep_their_positions_and_unanswerable_questions_have_none(tmp_path):
    answers = [{"text": "a dog", "answer_start": 8}, {"text": "dog", "answer_start": 10}]
    path = write_squad(
        tmp_path / "a.json",
        {"question": "who?", "id": "1", "answers": answers},
        {"question": "why?", "id": "2", "is_impossible": True, "answers": []},
    )
    where = f"{path}: data[0].paragraphs[0]: question"
    assert list(SpanReader([path], COLUMNS)) == [
        SpanQuestion("who?", " a cat, a dog", ("a dog", "dog"), (8, 10), f"{where} 1"),
        SpanQuestion("why?", " a cat, a dog", (), (), f"{where} 2"),
    ]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{"text": "dog", "answer_start": 8}], "the answer 'dog' is not at character 8 of its context: there is 'a d'"),
        ([{"text": "bird"}], "the answer 'bird' is not in its context"),
        ([{"text": "dog", "answer_start": "8"}], "answer_start is '8': expected a whole number"),
        ([], "no answers, and not is_impossible"),
    ],
)
def test_a_wrong_answer_is_an_error_or_counted(tmp_path, answers, message):
    path = write_squad(tmp_path / "a.json", {"question": "who?", "id": "7", "answers": answers})
    with pytest.raises(BadRecordError, match=rf"question 7: {message}"):
        list(SpanReader([path], COLUMNS))
    reader = SpanReader([path], COLUMNS, on_bad="skip")
    assert list(reader) == []
    assert reader.skipped.total() == 1


def test_an_answer_without_a_position_is_its_first_occurrence(tmp_path):
    (tmp_path / "a.tsv").write_text("question\tcontext\tanswer\nwho?\ta cat, a cat\tcat\n", encoding="utf-8")
    (found,) = SpanReader([tmp_path / "a.tsv"], COLUMNS)
    assert (found.answers, found.starts) == (("cat",), (2,))
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.txt: expected SQuAD \.json, or \.jsonl, \.tsv or \.csv"):
        SpanReader([tmp_path / "a.txt"], COLUMNS)
