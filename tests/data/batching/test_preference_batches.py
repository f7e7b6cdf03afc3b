"""Batches of preferred and rejected answers: the first half of the rows and the second half, pair by pair."""

import numpy as np
import torch

from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.marked_rows import write_marked_rows
from glassformer.data.batching.preference_batches import PreferenceBatches

PAIRS = [
    ([5, 6, 7], [False, True, True]),
    ([5, 8], [False, True]),
    ([4, 9], [False, True]),
    ([4] * 5, [False] * 4 + [True]),
]


def test_the_halves_of_a_batch_belong_together(tmp_path):
    rows = write_marked_rows(tmp_path / "x", PAIRS, limit=10)
    batches = PreferenceBatches(rows, np.array([1.0, 2.0, 3.0, 4.0]), max_tokens=64, pad=99)
    assert (len(batches), batches.n_rows(0), batches.epoch_of(1)) == (1, 2, 1)
    batch = batches.collate([0, 1])
    assert batch.n_target_tokens == 2
    assert batch.tokens[:, 0].tolist() == [5, 4, 5, 4]
    assert batch.reference.tolist() == [1, 3, 2, 4]
    assert batch.targets[0, :3].tolist() == [6, 7, IGNORED]
    assert (batch.targets[2] != IGNORED).sum() == 1
    part = batch.slice_rows(1, 2)
    assert part.reference.tolist() == [3, 4]
    assert torch.equal(part.tokens, batch.tokens[1::2])
    assert part.to("cpu").n_target_tokens == 1
