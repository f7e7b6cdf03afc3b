"""Labeled rows in files."""

import pytest
import torch

from glassformer.data.batching.labeled_batches import LabeledBatches, LabeledRow
from glassformer.data.batching.labeled_row_files import RowFiles, write_row_files

KINDS = {
    "numbers": [LabeledRow([5, 6, 7], [0, 0, 1], 2), LabeledRow([], [], 0), LabeledRow([70_000], [1], 1)],
    "fractions": [LabeledRow([5], [0], 0.1), LabeledRow([6, 7], [0, 1], 1 / 3)],
    "lists": [LabeledRow([5, 6], [0, 0], [1, 0]), LabeledRow([7], [0], [0, 0])],
    "labels": [LabeledRow([5, 6], [0, 0], [1.0, 0.0, 1.0]), LabeledRow([7], [0], [0.0, 0.0, 0.0])],
    "one for each token": [LabeledRow([5, 6, 7], [0, 0, 0], [-100, 3, -100]), LabeledRow([8], [0], [-100])],
    "none": [],
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_round_trip(kind, tmp_path):
    rows = KINDS[kind]
    write_row_files(tmp_path / "rows", rows, n_long=4)
    found = RowFiles(tmp_path / "rows")
    assert found.n_long == 4
    assert len(found) == len(rows)
    assert found.lengths.tolist() == [len(row.ids) for row in rows]
    for ours, read in zip(rows, found, strict=True):
        assert read.ids.tolist() == ours.ids
        assert read.token_types.tolist() == ours.token_types
        if isinstance(ours.answer, list):
            assert read.answer.tolist() == ours.answer
        else:
            assert read.answer == ours.answer
            assert type(read.answer) is type(ours.answer)
    with pytest.raises(IndexError):
        found[len(rows)]


@pytest.mark.parametrize("kind", ["numbers", "fractions", "lists", "labels", "one for each token"])
def test_batches_of_files_and_of_memory_are_the_same_bits(kind, tmp_path):
    rows = KINDS[kind]
    settings = {"pad": 1, "max_tokens": 8, "per_token": kind == "one for each token"}
    held, files = (LabeledBatches(some, **settings) for some in (rows, write_row_files(tmp_path / "rows", rows)))
    for step in range(2 * len(held)):
        for one, other in zip(held[step], files[step], strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


def test_answers_of_two_kinds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="some answers are numbers and others are lists"):
        write_row_files(tmp_path / "rows", [LabeledRow([1], [0], 1), LabeledRow([1], [0], [1])])
    assert not (tmp_path / "rows").exists()
