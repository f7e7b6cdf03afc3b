"""Errors of a tokenizer's files name the file, and a missing file is empty."""

import pytest

from glassformer.text.tokenizer_files import parse_json, parse_object, read_object, read_utf8


def test_a_missing_file_is_an_empty_object(tmp_path):
    assert read_object(tmp_path / "added_tokens.json") == {}


def test_an_object_is_read(tmp_path):
    (tmp_path / "config.json").write_text('{"a": "ä"}', encoding="utf-8")
    assert read_object(tmp_path / "config.json") == {"a": "ä"}


@pytest.mark.parametrize(
    ("contents", "error"),
    [
        (b"\xff", "config.json is not UTF-8 text"),
        (b"{", "config.json is not JSON"),
        (b"[" * 100_000, "config.json is not JSON"),
        (b"[1]", "config.json holds a list: expected an object"),
    ],
)
def test_errors_name_the_file(tmp_path, contents, error):
    (tmp_path / "config.json").write_bytes(contents)
    with pytest.raises(ValueError, match=error):
        read_object(tmp_path / "config.json")


def test_texts_are_parsed(tmp_path):
    (tmp_path / "merges.txt").write_text("a b", encoding="utf-8")
    assert read_utf8(tmp_path / "merges.txt") == "a b"
    assert parse_json("[1]", "vocab.json") == [1]
    assert parse_object("{}", "vocab.json") == {}
