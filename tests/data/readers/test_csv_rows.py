"""CSV: quoted cells are read exactly, and a wrong quote is an error at its line."""

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data.readers.record_files import ANY_TEXT, cells_of, reader
from glassformer.data.readers.csv_rows import CsvRow, read_csv_rows
from glassformer.data.readers.records import BadRecordError
from glassformer.data.readers.text_files import Line
from glassformer.tasks.classification import LabeledData


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
    assert examples[2].where == f"{tmp_path / 'a.csv'}:5"  # record 2 spans two lines


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=5), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
@example([("", ""), ('"', '""'), ("\r\n", ","), ("a\r", "\rb")], csv.QUOTE_MINIMAL)
@example([("\ufeff", "\ufeff")], csv.QUOTE_MINIMAL)
def test_any_text_that_the_csv_module_writes_comes_back(tmp_path_factory, rows, quoting):
    written = io.StringIO(newline="")
    writer = csv.writer(written, quoting=quoting)
    writer.writerow(["text", "label"])
    writer.writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(written.getvalue().encode())
    assert cells_of(path) == rows


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
def test_a_quote_that_could_hide_records_is_always_an_error(tmp_path, on_bad, text, message):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(BadRecordError, match=message):
        list(reader(tmp_path / "a.csv", on_bad=on_bad))


def test_an_unclosed_quote_is_noticed_before_the_end_of_a_long_file(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.data.readers.csv_rows.MAX_QUOTED", 1000)
    (tmp_path / "a.csv").write_text('text,label\na,x\n"b,y\n' + "c,z\n" * 1000, encoding="utf-8")
    with pytest.raises(BadRecordError, match=r"a\.csv:3: .* not closed within 1,000 characters"):
        list(reader(tmp_path / "a.csv"))


def test_a_row_has_its_cells_its_problem_and_its_first_line():
    texts = ['a,"b ""c"" d",\n', '"two\n', 'lines",x\r\n', 'a "b",c\n', '"a"b,"c"\n', "last,row"]
    lines = [Line(text, "", f"f:{number}") for number, text in enumerate(texts, start=1)]
    assert list(read_csv_rows(lines)) == [
        CsvRow(["a", 'b "c" d', ""], "", "f:1"),
        CsvRow(["two\nlines", "x"], "", "f:2"),
        CsvRow(['a "b"', "c"], "", "f:4"),
        CsvRow([], "not CSV: text after the quote that closes cell 1", "f:5"),
        CsvRow(["last", "row"], "", "f:6"),
    ]


def test_a_problem_of_any_line_is_a_problem_of_its_row():
    lines = [Line('"a\n', "", "f:1"), Line('b"\n', "not valid UTF-8", "f:2"), Line("c\n", "", "f:3")]
    assert [(row.problem, row.where) for row in read_csv_rows(lines)] == [("not valid UTF-8", "f:1"), ("", "f:3")]
