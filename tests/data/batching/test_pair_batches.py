import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.batching.pair_batches import CycledBatches, TokenBudgetBatches, grid, hide_words
from glassformer.data.batching.token_files import write_token_files
from glassformer.data.readers.pairs import Pair
from glassformer.text.tokenizer import BEGIN, END, PAD, UNKNOWN


def numbers(texts):
    return [[int(word) for word in text.split()] for text in texts]


def corpus(folder, count=400, seed=0):
    """Write pairs whose tokens are the number of the pair, which identifies every sentence."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, (count, 2))
    pairs = [Pair(*(" ".join([str(4 + i)] * n) for n in pair)) for i, pair in enumerate(lengths)]
    return write_token_files(folder / "train", pairs, numbers, numbers, max_len=100)


def test_an_epoch_holds_every_sentence_once_within_the_budget(tmp_path):
    batches = TokenBudgetBatches(corpus(tmp_path), max_tokens=256)
    for epoch in range(2):
        seen = []
        for position in range(len(batches)):
            batch = batches[epoch * len(batches) + position]
            assert max(batch.source.numel(), batch.target_in.numel()) <= 256
            assert (batch.target_in[:, 0] == BEGIN).all()
            assert ((batch.target_out == END).sum(1) == 1).all()
            assert ((batch.source == END).sum(1) == 1).all()
            assert (batch.target_in[:, 1:][batch.target_in[:, 1:] != PAD].numel()) == batch.n_target_tokens - len(
                batch.source
            )
            seen += batch.source[:, 0].tolist()
        assert sorted(seen) == list(range(4, 404))


@settings(max_examples=15)
@given(steps=st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_a_batch_depends_on_its_step_alone(tmp_path_factory, steps):
    files = corpus(tmp_path_factory.mktemp("corpus"), count=60)
    first = TokenBudgetBatches(files, max_tokens=200, seed=3)
    for step in steps:
        assert all(
            (a == b).all()
            for a, b in zip(first[step], TokenBudgetBatches(files, max_tokens=200, seed=3)[step], strict=True)
        )


def test_epochs_and_seeds_differ(tmp_path):
    files = corpus(tmp_path)
    batches, other = TokenBudgetBatches(files, max_tokens=256), TokenBudgetBatches(files, max_tokens=256, seed=1)
    orders = [
        [b[i].source[:, 0].tolist() for i in range(s, s + len(b))]
        for b, s in ((batches, 0), (batches, len(batches)), (other, 0))
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_padding_is_little_and_shapes_are_few(tmp_path):
    files = corpus(tmp_path, count=4000)
    batches = TokenBudgetBatches(files, max_tokens=2048)
    assert batches.padding_share() < 0.15, "two lengths drawn independently from 1 to 39, the hardest case"
    shapes = {(batches[i].source.shape[1], batches[i].target_in.shape[1]) for i in range(len(batches))}
    assert len(shapes) < len(batches)


def test_inputs_that_cannot_be_batched_are_refused(tmp_path):
    with pytest.raises(ValueError, match="max_tokens=16: expected at least"):
        TokenBudgetBatches(corpus(tmp_path), max_tokens=16)
    empty = write_token_files(tmp_path / "none", [], numbers, numbers, max_len=5)
    with pytest.raises(ValueError, match="the corpus is empty"):
        TokenBudgetBatches(empty)


def versions(folder, lengths=(20, 30, 45), **options):
    """Return batches of 90 sentences in several segmentations; longer ones make more batches."""
    made = []
    for number, longest in enumerate(lengths):
        sizes = np.random.default_rng(number).integers(1, longest, (90, 2))
        pairs = [Pair(*(" ".join([str(4 + i)] * n) for n in pair)) for i, pair in enumerate(sizes)]
        files = write_token_files(folder / str(number), pairs, numbers, numbers, max_len=100)
        made.append(TokenBudgetBatches(files, max_tokens=200, **options))
    return made


def same(a, b):
    return all(x.shape == y.shape and (x == y).all() for x, y in zip(a, b, strict=True))


def test_epochs_go_round_the_versions_and_hold_every_sentence_once(tmp_path):
    parts = versions(tmp_path)
    sizes = [len(part) for part in parts]
    assert len(set(sizes)) == 3, "different sizes show where a version ends"
    batches = CycledBatches(parts)
    assert len(batches) == sizes[0]
    step, orders = 0, []
    for epoch in range(7):
        rows, longest = [], 0
        for _ in range(sizes[epoch % 3]):
            assert batches.epoch_of(step) == epoch
            batch = batches[step]
            rows += batch.source[:, 0].tolist()
            longest = max(longest, batch.source.shape[1])
            step += 1
        assert sorted(rows) == list(range(4, 94))
        assert longest == grid(np.array([parts[epoch % 3].files.lengths("source").max() + 1]), 2)[0]
        orders.append(rows)
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@settings(max_examples=15)
@given(start=st.integers(0, 10**6), count=st.integers(1, 40))
def test_cycled_batches_may_be_entered_anywhere(tmp_path_factory, start, count):
    folder = tmp_path_factory.mktemp("corpus")
    walked, fresh = CycledBatches(versions(folder)), CycledBatches(versions(folder))
    start %= 2 * sum(len(part) for part in walked.versions)
    in_order = [walked[step] for step in range(start + count)][start:]
    assert all(same(batch, fresh[start + i]) for i, batch in reversed(list(enumerate(in_order))))


def test_versions_of_one_corpus_do_not_repeat_an_order(tmp_path):
    """Three versions with the same file and seed must not all start with the first epoch."""
    files = corpus(tmp_path)
    one = TokenBudgetBatches(files, max_tokens=256)
    cycled = CycledBatches([TokenBudgetBatches(files, max_tokens=256) for _ in range(3)])
    assert all(same(cycled[step], one[step]) for step in range(5 * len(one)))
    assert cycled.epoch_of(4 * len(one)) == 4
    assert cycled.padding_share() == pytest.approx(one.padding_share())


def test_there_must_be_a_version():
    with pytest.raises(ValueError, match="no versions: expected at least one"):
        CycledBatches([])


def test_word_dropout_hides_no_special_tokens():
    tokens = torch.tensor([[1, 7, 8, 9, END, PAD]]).repeat(200, 1)
    hidden = hide_words(tokens, 0.3)
    changed = hidden != tokens
    assert 0.2 < changed[:, 1:4].float().mean() < 0.4
    assert not changed[:, [0, 4, 5]].any()
    assert (hidden[changed] == UNKNOWN).all()
    assert hide_words(tokens, 0.0) is tokens
