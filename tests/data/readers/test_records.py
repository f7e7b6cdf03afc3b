"""Records of tables: they come back as they were written, and errors name file and line."""

import csv
import gzip
import io
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glassformer.data.readers.records import BadRecordError, Examples, RecordReader, as_text, read_records
from glassformer.tasks.classification import LabeledData
from glassformer.tasks.similarity import SimilarityData

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    'a",\r\n\t\ufeff\u2028\x0c ', max_size=8
)


def reader(path, **options):
    return RecordReader([path], ["text", "label"], lambda record: as_text(record.cells[0], "text"), **options)


def cells_of(path, columns=("text", "label")):
    return [record.cells if not record.problem else record.problem for record in read_records(path, columns)]


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
        ("a.jsonl", "[" * 100_000 + "\n", r"a.jsonl:1: not JSON \("),
        ("a.jsonl", b'{"text": "\xff", "label": "x"}\n', r"a.jsonl:1: not valid UTF-8"),
        ("a.tsv", "text\tlabel\nb\n", r"a.tsv:2: 1 columns, expected 2"),
        ("a.tsv", "text\tlabel\na\tcat\tx\n", r"a.tsv:2: 3 columns, expected 2 \(on_bad"),
        ("a.tsv", 'text\tlabel\n"a\tcat"\tx\n', r"a.tsv:2: 3 columns, expected 2 \(TSV has no quoting"),
        ("a.tsv", b"text\tlabel\n\xed\xa0\x80\tx\n", r"a.tsv:2: not valid UTF-8"),
        ("a.csv", "text,label\na,b,x\n", r"a.csv:2: 3 columns, expected 2"),
        ("a.csv", 'text,label\n"a\nb"\n', r"a.csv:2: 1 columns, expected 2"),
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


def test_a_line_break_in_a_quoted_cell_does_not_end_the_record(tmp_path):
    rows = [
        (f"He came.\nI said, {number}" if number % 3 else f"number {number}", "xy"[number % 2]) for number in range(200)
    ]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows)
    examples = LabeledData(data=(tmp_path / "a.csv",)).examples()
    assert [(example.text, *example.labels) for example in examples] == rows
    assert examples[2].where == f"{tmp_path / 'a.csv'}:5"  # the second has two lines


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=5), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
@example([("", ""), ('"', '""'), ("\r\n", ","), ("a\r", "\rb")], csv.QUOTE_MINIMAL)
@example([("\ufeff", "\ufeff")], csv.QUOTE_MINIMAL)
def test_any_text_that_the_csv_module_writes_comes_back(tmp_path_factory, rows, quoting):
    told = io.StringIO(newline="")
    writer = csv.writer(told, quoting=quoting)
    writer.writerow(["text", "label"])
    writer.writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(told.getvalue().encode())
    assert cells_of(path) == rows


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


def test_long_cells_are_read_whole(tmp_path):
    long, limit = "a" * 200_000, csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f'text,label\n{long},x\n"{long}\n{long}",y\n', encoding="utf-8")
    assert cells_of(tmp_path / "a.csv") == [(long, "x"), (f"{long}\n{long}", "y")]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("on_bad", ["error", "skip"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('text,label\na,x\nb,"y\nc,z\n', r"a\.csv:3: the quote that opens a cell here is never closed"),
        ('text,label\n"5 inch,x\nb,y\na 6" disk,z\n', r"a\.csv:2: not CSV: text after the quote that closes cell 1"),
        ('text,label\n"a"b,"\nc",x\n', r"a\.csv:2: not CSV: text after the quote"),
    ],
)
def test_a_quote_that_may_swallow_records_is_always_an_error(tmp_path, on_bad, text, message):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(BadRecordError, match=message):
        list(reader(tmp_path / "a.csv", on_bad=on_bad))


def test_an_unclosed_quote_is_noticed_before_the_end_of_a_long_file(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.data.readers.csv_rows.MAX_QUOTED", 1000)
    (tmp_path / "a.csv").write_text('text,label\na,x\n"b,y\n' + "c,z\n" * 1000, encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"a\.csv:3: .* not closed within 1,000 characters"):
        list(reader(tmp_path / "a.csv"))


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
