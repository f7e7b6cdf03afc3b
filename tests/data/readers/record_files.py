"""Small files of records, shared by the tests of `records.py` and `csv_rows.py`."""

from hypothesis import strategies as st

from glassformer.data.readers.records import RecordReader, as_text, read_records

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(
    'a",\r\n\t\ufeff\u2028\x0c ', max_size=8
)


def reader(path, **options):
    """Return a reader of the `text` column."""
    return RecordReader([path], ["text", "label"], lambda record: as_text(record.cells[0], "text"), **options)


def cells_of(path, columns=("text", "label")):
    """Return the cells of each record, or its problem."""
    return [record.cells if not record.problem else record.problem for record in read_records(path, columns)]
