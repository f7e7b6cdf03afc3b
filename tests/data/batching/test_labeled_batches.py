"""Batches of labeled texts: padding, answers, and pairs of texts."""

import pytest
import torch

from glassformer.data.batching.labeled_batches import IGNORED, LabeledBatches, LabeledRow, PairedBatches, make_batch

PAD = 1


def test_rows_are_padded_and_padding_is_masked():
    batch = make_batch([LabeledRow([5, 6, 7], [0, 0, 1], 2), LabeledRow([8], [1], 0)], pad=PAD)
    assert batch.tokens.tolist() == [[5, 6, 7, PAD], [8, PAD, PAD, PAD]]
    assert batch.mask.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert batch.token_types.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    assert batch.answers.tolist() == [2, 0]
    assert batch.n_target_tokens == 2


def test_answers_per_token_are_padded_with_a_value_that_the_loss_ignores():
    rows = [LabeledRow([5, 6, 7], [0] * 3, [IGNORED, 3, 4]), LabeledRow([8], [0], [2])]
    batch = make_batch(rows, pad=PAD, per_token=True)
    assert batch.answers.tolist() == [[IGNORED, 3, 4, IGNORED], [2, IGNORED, IGNORED, IGNORED]]
    assert batch.n_target_tokens == 3


def test_a_row_of_floats_counts_as_one_answer():
    rows = [LabeledRow([5], [0], [1.0, 0.0, 1.0]), LabeledRow([6], [0], [0.0, 0.0, 0.0])]
    batch = make_batch(rows, pad=PAD)
    assert batch.answers.dtype == torch.float32
    assert batch.n_target_tokens == 2


def test_an_epoch_has_every_row_once_and_reports_its_padding():
    rows = [LabeledRow([10 + number] * (1 + number % 7), [0] * (1 + number % 7), number) for number in range(50)]
    batches = LabeledBatches(rows, pad=PAD, max_tokens=32, seed=2)
    epoch = [batches[step] for step in range(len(batches))]
    assert sorted(answer for batch in epoch for answer in batch.answers.tolist()) == list(range(50))
    assert all(batch.tokens.numel() <= 32 for batch in epoch)
    n_padding, n_tokens = (
        sum(int(count) for count in counts)
        for counts in zip(*(((~batch.mask).sum(), batch.mask.numel()) for batch in epoch), strict=True)
    )
    assert batches.padding_share() == pytest.approx(n_padding / n_tokens)
    assert (batches.epoch_of(len(batches) - 1), batches.epoch_of(len(batches))) == (0, 1)


def test_paired_batches_hold_all_first_texts_before_all_second_texts():
    rows = [LabeledRow([100 * side + number], [0], number / 10) for number in range(1, 10) for side in (1, 2)]
    batches = PairedBatches(rows, pad=PAD, max_tokens=8)
    seen = []
    for step in range(len(batches)):
        batch = batches[step]
        first, second = batch.tokens[:, 0].chunk(2)
        assert (second - first == 100).all()
        assert torch.allclose(batch.answers, (first - 100).float() / 10)
        seen += first.tolist()
    assert sorted(seen) == list(range(101, 110))
