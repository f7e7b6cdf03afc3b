import itertools

import pytest
import torch

from glassformer.data.corpora.toy import ANSWERS, BEGIN, END, N_SPECIAL, PAD, PairTaskData, counting_rows


@pytest.mark.parametrize("task", ANSWERS)
def test_pairs_are_shifted_padded_and_right(task):
    data = PairTaskData(task, n_symbols=9, min_length=2, max_length=6, batch_size=20)
    batch = next(data.batches())
    for source, before, after in zip(*(x.tolist() for x in batch), strict=True):
        symbols = [token for token in source if token != PAD]
        answer = ANSWERS[task](symbols)
        assert [t for t in before if t != PAD] == [BEGIN, *answer]
        assert [t for t in after if t != PAD] == [*answer, END]
        assert 2 <= len(symbols) <= 6
        assert all(N_SPECIAL <= token < data.vocab_size for token in symbols)
    assert torch.equal(batch.source_mask, batch.source != PAD)


def test_excluded_sequences_never_appear():
    batches = PairTaskData("copy", 4, 2, 3, leave_out=lambda row: sum(row) % 2 == 0).batches()
    for batch in itertools.islice(batches, 5):
        for row in batch.source.tolist():
            assert sum(token - N_SPECIAL for token in row if token != PAD) % 2


def test_the_same_seed_gives_the_same_batches():
    first, second = (PairTaskData("copy", 5, seed=3).batches() for _ in range(2))
    for a, b in itertools.islice(zip(first, second, strict=False), 3):
        assert torch.equal(a.source, b.source)


def test_rows_count_by_their_step():
    rows = next(counting_rows(7, 9, 30)) - N_SPECIAL
    steps = rows.diff(dim=1) % 7
    assert (steps == steps[:, :1]).all()
    assert set(steps[:, 0].tolist()) == {1, 2, 3}
