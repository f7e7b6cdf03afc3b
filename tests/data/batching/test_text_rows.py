"""Tokenized texts in files and in memory."""

import numpy as np
import pytest

from glassformer.data.batching.text_rows import InMemoryRows, TextRows, write_text_rows


def encode(texts):
    return [[int(digit) for digit in text] for text in texts]


@pytest.mark.parametrize("texts", [["123456", "", "7", "89"], [], [""]], ids=["texts", "no text", "an empty text"])
def test_rows_in_files_equal_rows_in_memory(tmp_path, texts):
    write_text_rows(tmp_path / "rows", iter(texts), encode, longest=4)
    held, files = InMemoryRows(texts, encode, longest=4), TextRows(tmp_path / "rows")
    assert len(held) == len(files) == len(held.lengths)
    assert held.lengths.tolist() == files.lengths.tolist()
    for row in range(len(held)):
        assert held[row].tolist() == files[row].tolist()
        assert held[row].dtype == files[row].dtype == np.int64


def test_a_long_text_is_split_into_rows_and_an_empty_text_has_none(tmp_path):
    rows = write_text_rows(tmp_path / "rows", ["123456789", "", "12"], encode, longest=4)
    assert [rows[row].tolist() for row in range(len(rows))] == [[1, 2, 3, 4], [5, 6, 7, 8], [9], [1, 2]]
