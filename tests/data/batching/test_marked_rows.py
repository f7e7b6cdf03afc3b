"""Packed conversations: each is in one window, once an epoch, and its targets are the learned tokens."""

import numpy as np
import torch

from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.marked_rows import MarkedBatches, MarkedRows, pack, write_marked_rows
from glassformer.models import build_model, preset

ROWS = [
    ([5, 6, 7], [False, True, True]),
    ([8] * 9, [False] * 8 + [True]),
    ([4, 9], [False, True]),
    ([1] * 20, [True] * 20),
]


def test_rows_are_stored_and_long_ones_are_left_out(tmp_path):
    rows = write_marked_rows(tmp_path / "x", ROWS, limit=10)
    assert (len(rows), rows.n_long, rows.lengths.tolist()) == (3, 1, [3, 9, 2])
    again = MarkedRows(tmp_path / "x")
    assert again.n_long == 1
    assert again[2][0].tolist() == [4, 9]
    assert again[0][1].tolist() == [0, 1, 1]
    assert len(write_marked_rows(tmp_path / "empty", [], limit=3)) == 0


def test_an_epoch_holds_every_row_once_with_its_targets(tmp_path):
    rows = write_marked_rows(tmp_path / "x", ROWS[:3], limit=10)
    batches = MarkedBatches(rows, 10, max_tokens=20, pad=99)
    assert len(batches) == 1
    assert 0 < batches.padding_share() < 1
    batch = batches[0]
    assert sorted(batch.tokens[batch.tokens != 99].tolist()) == sorted(i for ids, _ in ROWS[:3] for i in ids)
    assert sorted(batch.targets[batch.targets != IGNORED].tolist()) == [6, 7, 8, 9]
    row = next(i for i in range(2) if 5 in batch.tokens[i])
    place = batch.tokens[row].tolist().index(5)
    assert batch.targets[row, place : place + 3].tolist() == [6, 7, IGNORED]
    assert len(set(batch.numbers[row].tolist())) == 3  # two conversations and the padding
    assert torch.equal(batches[3].tokens, MarkedBatches(rows, 10, max_tokens=20, pad=99)[3].tokens)


def test_a_packed_conversation_gives_the_logits_of_the_conversation_alone(tmp_path):
    rows = write_marked_rows(tmp_path / "x", ROWS[:3], limit=10)
    (batch,) = [MarkedBatches(rows, 10, max_tokens=20)[0]]
    model = build_model(preset("tiny-llama")).eval()
    with torch.no_grad():
        packed = model(batch.tokens, segments=batch.segments)
        row = next(i for i in range(2) if 5 in batch.tokens[i])
        place = batch.tokens[row].tolist().index(5)
        torch.testing.assert_close(packed[row, place : place + 3], model(torch.tensor([[5, 6, 7]]))[0])


def test_windows_are_filled_by_best_fit():
    lengths = np.array([5, 7, 3, 1, 9, 5])
    windows = pack(lengths, 10)
    assert sorted(index for window in windows for index in window) == list(range(6))
    assert all(lengths[window].sum() <= 10 for window in windows)
    assert len(windows) == 3
