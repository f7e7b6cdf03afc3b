"""Records of tables: they come back as they were written, and errors name file and line."""

import gzip
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data.readers.record_files import ANY_TEXT, cells_of, reader
from glassformer.data.readers.records import BadRecordError, Examples, read_records
from glassformer.tasks.classification import LabeledData
from glassformer.tasks.similarity import SimilarityData


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz"])
def test_byte_order_mark_is_dropped_from_the_first_record(tmp_path, name):
    text = {
        "a.csv": "text,label\na cat,x\n",
        "a.tsv": "text\tlabel\na cat\tx\n",
        "a.jsonl": '{"text": "a cat", "label": "x"}\n',
    }[name.removesuffix(".gz")].encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert list(reader(tmp_path / name)) == ["a cat"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": "\\ud83d", "label": "x"}\n', r"a.jsonl:1: half a surrogate pair under 'text'"),
        ("a.jsonl", '{"text": "a", "label": ["b", {"c": "\\uDE00"}]}\n', r"a.jsonl:1: half a surrogate .* 'label'"),
        ("a.jsonl", '{"text": "a", "label": %s}\n' % ("9" * 5000), r"a.jsonl:1: not JSON \(Exceeds the limit"),
        (
            "a.jsonl",
            '{"text": "a", "label": "b", "label": "c"}\n',
            r"a.jsonl:1: the key 'label' occurs twice in an object",
        ),
        ("a.jsonl", '{"text": "a", "label": [{"b": 1, "b": 1, "b": 2}]}\n', r"a.jsonl:1: the key 'b' occurs 3 times"),
        ("a.jsonl", "[" * 100_000 + "\n", r"a.jsonl:1: not JSON \("),
        ("a.jsonl", b'{"text": "\xff", "label": "x"}\n', r"a.jsonl:1: not valid UTF-8"),
        ("a.tsv", "text\tlabel\nb\n", r"a.tsv:2: 1 column, expected 2"),
        ("a.tsv", "text\tlabel\na\tcat\tx\n", r"a.tsv:2: 3 columns, expected 2 \(on_bad"),
        ("a.tsv", 'text\tlabel\n"a\tcat"\tx\n', r"a.tsv:2: 3 columns, expected 2 \(TSV has no quoting"),
        ("a.tsv", b"text\tlabel\n\xed\xa0\x80\tx\n", r"a.tsv:2: not valid UTF-8"),
        ("a.csv", "text,label\na,b,x\n", r"a.csv:2: 3 columns, expected 2"),
        ("a.csv", 'text,label\n"a\nb"\n', r"a.csv:2: 1 column, expected 2"),
        ("a.csv", 'text,label\n"a"b,x\n', r"a.csv:2: not CSV: text after the quote that closes cell 1 \(on_bad"),
        ("a.csv", "text,label\na\rb,x\n", r"a.csv:2: not CSV: a carriage return outside quotes"),
        ("a.csv", b'text,label\n"a\n\xff",x\n', r"a.csv:2: not valid UTF-8"),
    ],
)
def test_a_bad_record_is_named_or_counted(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadRecordError, match=message):
        list(reader(tmp_path / name))
    good = {"a.csv": b"good,y\n", "a.tsv": b"good\ty\n", "a.jsonl": b'{"text": "good", "label": "y"}\n'}[name]
    with (tmp_path / name).open("ab") as file:
        file.write(good)
    found = Examples.of(reader(tmp_path / name, on_bad="skip"))
    assert found == ["good"]
    assert found.skipped.total() == 1


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=5), st.booleans())
def test_any_text_that_the_json_module_writes_comes_back(tmp_path_factory, rows, ascii_only):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    lines = [json.dumps({"text": text, "label": label}, ensure_ascii=ascii_only) for text, label in rows]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert cells_of(path) == rows


@given(
    st.binary(max_size=60) | st.text('ab,"\n\r\t{}[]:0\\ud8', max_size=60).map(str.encode),
    st.sampled_from(["csv", "tsv", "jsonl"]),
)
@example(b'text,label\n"', "csv")
@example(b"", "csv")
def test_any_bytes_are_records_or_errors_with_file_and_line(tmp_path_factory, contents, ending):
    path = tmp_path_factory.mktemp("any") / f"a.{ending}"
    header = {"csv": b"text,label\n", "tsv": b"text\tlabel\n", "jsonl": b""}[ending]
    for data in (contents, header + contents):
        path.write_bytes(data)
        try:
            places = [f"{record.where}: " for record in read_records(path, ["text", "label"])]
        except BadRecordError as error:
            places = [str(error)]
        assert all(re.match(rf"{re.escape(str(path))}:\d+: ", place) for place in places)


def test_a_quote_is_an_ordinary_character_in_tsv_and_inside_unquoted_cells(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"a\tb"\n5" disk\tx\n', encoding="utf-8")
    assert cells_of(tmp_path / "a.tsv") == [('"a', 'b"'), ('5" disk', "x")]
    (tmp_path / "a.csv").write_text('text,label\n5" disk,x\n', encoding="utf-8")
    assert cells_of(tmp_path / "a.csv") == [('5" disk', "x")]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "the file is empty: expected a header"),
        (b"text,\xff,label\n", "not valid UTF-8"),
        (b"text,label,text\na,x,b\n", "2 columns are named 'text': expected one"),
        (b'"te\nxt",label\n', r"no column 'text' in the header"),
    ],
)
def test_a_header_that_cannot_be_used_is_an_error(tmp_path, header, message):
    (tmp_path / "a.csv").write_bytes(header)
    with pytest.raises(BadRecordError, match=rf"a\.csv:1: {message}"):
        list(reader(tmp_path / "a.csv", on_bad="skip"))


def test_labels_that_are_blank_and_scores_that_are_too_large_are_bad_records(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": ["x", " "]}\n', encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"a\.jsonl:1: empty label"):
        LabeledData(data=(tmp_path / "a.jsonl",), multi_label=True).examples()
    (tmp_path / "b.jsonl").write_text('{"text": "a", "second": "b", "score": 1%s}\n' % ("0" * 400), encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"b\.jsonl:1: 1000.* under 'score'"):
        SimilarityData(data=(tmp_path / "b.jsonl",)).examples()
