"""Records of tables: what is wrong with one is told with its place."""

import pytest

from glassformer.data.records import BadRecordError, Examples, RecordReader, as_text


def reader(path, **options):
    return RecordReader([path], ["text", "label"], lambda record: as_text(record.cells[0], "text"), **options)


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_its_header(tmp_path):
    (tmp_path / "a.csv").write_bytes("text,label\na cat,x\n".encode("utf-8-sig"))
    assert list(reader(tmp_path / "a.csv")) == ["a cat"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "text,label\n" + "a" * 200_000 + ",x\n", r"a.csv:2: not CSV \(field larger"),
        ("a.jsonl", '{"text": "\\ud83d", "label": "x"}\n', r"a.jsonl:1: half a surrogate pair"),
        ("a.tsv", "text\tlabel\nb\n", r"a.tsv:2: 1 columns, expected 2"),
    ],
)
def test_a_bad_record_is_named_or_counted(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadRecordError, match=message):
        list(reader(tmp_path / name))
    found = Examples.of(reader(tmp_path / name, on_bad="skip"))
    assert not found
    assert found.skipped.total() == 1
