"""Documents of files and folders, and their split into training and validation."""

import gzip
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.data.readers.records import BadRecordError
from glassformer.data.readers.text_documents import (
    Document,
    DocumentReader,
    is_one_text,
    split_by_position,
    split_documents,
)


def test_documents_of_files_folders_and_separated_parts(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\nmore\n\n\nthree", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    with gzip.open(tmp_path / "sub" / "b.txt.gz", "wt") as file:
        file.write("  four\n")
    (tmp_path / "c.py").write_text("five", encoding="utf-8")
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    (tmp_path / "d.jsonl").write_text(json.dumps({"words": " six \n"}) + "\n", encoding="utf-8")

    def texts(*paths, **options):
        return [document.text for document in DocumentReader([tmp_path / path for path in paths], **options)]

    assert texts("") == ["one\n\ntwo\nmore\n\n\nthree", "  four\n"]
    assert texts("", suffixes=(".py",)) == ["five"]
    assert texts("a.txt", separator="blank") == ["one", "two\nmore", "three"]
    assert texts("a.txt", separator="two") == ["one", "more\n\n\nthree"]
    assert texts("d.jsonl", column="words") == [" six \n"]
    where = [document.where for document in DocumentReader([tmp_path / "a.txt"], separator="blank")]
    assert [place.rsplit(":")[-1] for place in where] == ["1", "3", "7"]
    with pytest.raises(BadRecordError, match=r"d.jsonl:1: no text under 'text'"):
        texts("d.jsonl")
    assert texts("d.jsonl", on_bad="skip") == []
    with pytest.raises(ValueError, match=r"holds no file that ends in \.c: expected at least one"):
        texts("", suffixes=(".c",))


@given(st.lists(st.text(max_size=9), min_size=1), st.floats(0.01, 0.99))
def test_split_by_position_validates_on_the_end_of_the_text(texts, share):
    train, valid = split_by_position([Document(text) for text in texts], share)
    before, after = ("".join(document.text for document in side) for side in (train, valid))
    assert before + after == "".join(texts)
    assert len(before) == int(len(before + after) * (1 - share))


def test_few_documents_are_split_by_position_and_many_by_hash():
    many = [Document(f"text number {number}") for number in range(500)]
    train, valid = split_documents(many)
    assert sorted([*train, *valid]) == sorted(many)
    assert 5 < len(list(valid)) < 40
    train, valid = split_documents([Document("0123456789")])
    assert (list(train), list(valid)) == ([Document("012345678")], [Document("9")])
    with pytest.raises(ValueError, match=r"valid_share=1.5: expected a share"):
        split_documents(many, 1.5)


def test_a_bad_line_makes_its_whole_document_bad(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo \xff\nthree\n---\n \n---\nfour\n---\nfive")
    with pytest.raises(BadRecordError, match=r"a\.txt:2: not valid UTF-8"):
        list(DocumentReader([tmp_path / "a.txt"], separator="---"))
    reader = DocumentReader([tmp_path / "a.txt"], separator=" --- ", on_bad="skip")
    assert [(document.text, document.where.rsplit(":")[-1]) for document in reader] == [("four", "7"), ("five", "9")]
    assert reader.skipped.total() == 1


def test_half_a_surrogate_pair_in_a_document_is_a_bad_record(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a b \\ud800"}\n', encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"a\.jsonl:1: half a surrogate pair under 'text'"):
        list(DocumentReader([tmp_path / "a.jsonl"]))


def test_is_one_text_reads_no_more_than_two_documents():
    assert is_one_text([Document("a")])
    assert not is_one_text([])
    assert not is_one_text(Document(str(number)) for number in itertools.count())
