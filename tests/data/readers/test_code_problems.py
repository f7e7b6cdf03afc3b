"""Programming problems in the format of MBPP."""

import json

import pytest

from glassformer.data.readers.code_problems import read_problems
from glassformer.data.readers.records import BadRecordError


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_a_problem_has_a_text_or_prompt_tests_and_setup_code(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"text": "add two numbers", "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]},
        {"prompt": "square", "test_list": ["assert square(x) == 4"], "test_setup_code": "x = 2"},
    )
    first, second = read_problems(path)
    assert first[:3] == ("add two numbers", ("assert add(1, 2) == 3", "assert add(0, 0) == 0"), "")
    assert second[:3] == ("square", ("assert square(x) == 4",), "x = 2")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "a", "test_list": "assert a"}, "no tests under 'test_list'"),
        ({"text": "a", "test_list": []}, "no tests under 'test_list'"),
        ({"text": "a", "test_list": ["x"], "test_setup_code": 5}, "no text under 'test_setup_code'"),
        ({"test_list": ["x"]}, "no text under 'text'"),
    ],
)
def test_a_problem_without_usable_fields_names_its_line(tmp_path, record, message):
    path = write(tmp_path / "a.jsonl", {"text": "a", "test_list": ["x"]}, record)
    with pytest.raises(BadRecordError, match=rf"a\.jsonl:2: {message}"):
        read_problems(path)


def test_a_file_without_problems_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a\.jsonl holds no problems: expected at least one"):
        read_problems(write(tmp_path / "a.jsonl"))
