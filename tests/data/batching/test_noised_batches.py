"""Batches of masked and of corrupted texts."""

from functools import partial

import numpy as np
import pytest
import torch

from glassformer.data.batching.labeled_batches import IGNORED
from glassformer.data.batching.noise import Masked, fill_spans, hide_spans, span_counts
from glassformer.data.batching.noised_batches import (
    DenoisingBatches,
    MaskedBatches,
    SurroundingTokens,
    make_masked_batch,
)
from glassformer.data.batching.text_rows import InMemoryRows

PAD, BEGIN, END, MASK = 0, 1, 2, 3
FRAME = SurroundingTokens([BEGIN], [END], PAD)
WORDS = np.arange(50, 100)
SENTINELS = range(10, 40)
TEXTS = ["".join(chr(50 + (7 * row + place) % 50) for place in range(5 + row % 9)) for row in range(40)]
ROWS = InMemoryRows(TEXTS, lambda texts: [[ord(letter) for letter in text] for text in texts], longest=99)


def masked_batches(seed=0):
    return MaskedBatches(ROWS, FRAME, share=0.3, mask=MASK, words=WORDS, max_tokens=64, seed=seed)


def test_a_masked_batch_frames_and_pads_its_texts():
    texts = [
        Masked(np.array([50, MASK, 52]), np.array([1]), np.array([51])),
        Masked(np.array([MASK, 61, MASK, 63, 64]), np.array([0, 2]), np.array([60, 62])),
    ]
    batch = make_masked_batch(texts, FRAME)
    assert batch.tokens.tolist() == [
        [BEGIN, 50, MASK, 52, END, PAD, PAD, PAD],
        [BEGIN, MASK, 61, MASK, 63, 64, END, PAD],
    ]
    assert batch.mask.sum(1).tolist() == [5, 7]
    assert batch.places.tolist() == [[2, 0], [1, 3]]
    assert batch.answers.tolist() == [[51, IGNORED], [60, 62]]
    assert batch.n_target_tokens == 3


def test_masked_batches_restore_every_text_of_an_epoch():
    batches = masked_batches()
    found = []
    for step in range(len(batches)):
        batch = batches[step]
        for tokens, mask, places, answers in zip(*batch, strict=True):
            whole = tokens.clone()
            whole[places[answers != IGNORED]] = answers[answers != IGNORED]
            framed = whole[mask].tolist()
            assert (framed[0], framed[-1]) == (BEGIN, END)
            found.append("".join(map(chr, framed[1:-1])))
    assert sorted(found) == sorted(TEXTS)


def test_corruption_depends_on_seed_and_step_and_changes_in_each_epoch():
    batches, again, other = masked_batches(), masked_batches(), masked_batches(seed=1)
    n_batches = len(batches)
    for step in reversed(range(2 * n_batches)):
        assert all(torch.equal(one, two) for one, two in zip(batches[step], again[step], strict=True))

    def corrupted(some, steps):
        rows = [row for step in steps for row in some[step].tokens.tolist()]
        return sorted([token for token in row if token != PAD] for row in rows)

    first = corrupted(batches, range(n_batches))
    assert first != corrupted(batches, range(n_batches, 2 * n_batches))
    assert first != corrupted(other, range(n_batches))


def test_denoising_batches_hold_source_and_target_of_every_text():
    noise = partial(hide_spans, share=0.3, mean_span=2.0, sentinels=SENTINELS)

    def sizes(lengths):
        hidden, spans = np.array([span_counts(length, 0.3, 2.0) for length in lengths.tolist()]).T
        return lengths - hidden + spans, hidden + spans + 1

    batches = DenoisingBatches(ROWS, noise, sizes, max_tokens=64)
    found = []
    for step in range(len(batches)):
        batch = batches[step]
        for source, target in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True):
            source, target = ([token for token in side if token >= SENTINELS[0]] for side in (source, target))
            found.append("".join(map(chr, fill_spans(source, target, SENTINELS))))
    assert sorted(found) == sorted(TEXTS)


def test_no_texts_are_refused():
    empty = InMemoryRows([], lambda texts: [], longest=9)
    with pytest.raises(ValueError, match="no texts are left: expected more data"):
        MaskedBatches(empty, FRAME, share=0.3, mask=MASK, words=WORDS, max_tokens=64)
