"""Multiple-choice questions in JSONL files."""

import json
from collections import Counter

import pytest

from glassformer.data.readers.multiple_choice import MultipleChoice, read_multiple_choice
from glassformer.data.readers.text_files import BadRecordError


def read(path, *records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return list(read_multiple_choice([path]))


@pytest.mark.parametrize("answer", [1, "1", "B", "dog"])
def test_the_answer_is_an_index_a_letter_or_a_text(answer, tmp_path):
    found = read(tmp_path / "q.jsonl", {"question": "Who?", "choices": ["cat", "dog"], "answer": answer}, "")
    assert found == [MultipleChoice("Who?", ("cat", "dog"), 1)]


def test_a_question_may_be_called_context(tmp_path):
    assert read(tmp_path / "q.jsonl", {"context": "Who?", "choices": ["a", "b"], "answer": 0})[0].question == "Who?"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "not JSON"),
        ([1], "expected a JSON object"),
        ('{"answer": 0, "answer": 1}', "the key 'answer' occurs twice in an object"),
        ({"choices": ["a", "b"], "answer": 0}, "'question' is missing"),
        ({"question": "Who?", "choices": ["a"], "answer": 0}, "at least two texts"),
        ({"question": "Who?", "choices": ["a", ""], "answer": 0}, "at least two texts"),
        ({"question": "Who?", "choices": ["a", "b"], "answer": 2}, "answer=2: expected the index"),
        ({"question": "Who?", "choices": ["a", "b"], "answer": True}, "answer=True"),
        ({"question": "Who?", "choices": ["a", "b"]}, "answer=None"),
    ],
)
def test_a_bad_question_is_named_by_its_line(record, message, tmp_path):
    good = {"question": "Who?", "choices": ["a", "b"], "answer": 0}
    with pytest.raises(BadRecordError, match=rf"q\.jsonl:2: .*{message}"):
        read(tmp_path / "q.jsonl", good, record)
    skipped = Counter()
    assert len([*read_multiple_choice([tmp_path / "q.jsonl"], "skip", skipped)]) == 1
    assert skipped.total() == 1
