"""Unlabeled texts, one per line or per record."""

import pytest

from glassformer.data.readers.plain_texts import PlainText, TextReader
from glassformer.data.readers.records import BadRecordError


def test_texts_are_lines_or_a_column(tmp_path):
    (tmp_path / "a.txt").write_text("  one two \n\n \t\nthree", encoding="utf-8")
    (tmp_path / "a.csv").write_text("id,words\n1,four\n", encoding="utf-8")
    assert list(TextReader([tmp_path / "a.txt", tmp_path / "a.csv"], "words")) == [
        PlainText("one two", f"{tmp_path / 'a.txt'}:1"),
        PlainText("three", f"{tmp_path / 'a.txt'}:4"),
        PlainText("four", f"{tmp_path / 'a.csv'}:2"),
    ]


def test_bad_records_are_errors_or_counted_anew_in_each_pass(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": 5.5}\n{"text": []}\n{"text": " "}\n{"text": "two"}\n', encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"a\.jsonl:\d: .*\(on_bad='skip', or --on-bad skip, skips such records\)"):
        list(TextReader([path]))
    reader = TextReader([path], on_bad="skip")
    for _ in range(2):
        found = [found.text for found in reader]
        assert found[0] == "one"
        assert found[-1] == "two"
        assert len(found) + reader.skipped.total() == 5
        assert reader.skipped["empty text"] == 1
