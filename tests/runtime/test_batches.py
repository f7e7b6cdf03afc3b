"""Results for many inputs in batches: in order, within the limit, and the same by several threads."""

import threading

import pytest
import torch

from glassformer.decoding.scoring import score_long_texts, score_texts
from glassformer.models import build_model, preset
from glassformer.runtime import cpu_workers
from glassformer.runtime.batches import compute_in_batches, read_in_batches, sort_into_batches


def test_batches_are_within_the_limit_and_the_longest_come_first():
    assert sort_into_batches([3, 9, 4, 0, 20], 12) == [[4], [1], [2, 0, 3]]
    assert sort_into_batches([], 12) == []


def test_results_are_in_the_order_of_the_inputs():
    seen = []

    def double(chosen):
        seen.append(chosen)
        return [2 * index for index in chosen]

    assert compute_in_batches([1, 5, 2], double, batch_tokens=4, workers=1, label="doubling") == [0, 2, 4]
    assert seen == [[1], [2, 0]]


def test_texts_are_read_by_threads_with_batches_of_their_own(two_threads, monkeypatch):
    """The scores are those of one batch at a time, for encoders and decoders, up to rounding."""
    torch.manual_seed(2)
    encoder, decoder = (build_model(preset(name)).eval() for name in ("tiny-bert-base", "tiny-gpt2"))
    texts = [torch.randint(5, 40, (length,)).tolist() for length in (9, 3, 7, 5, 2) * 40]
    names = set()

    def score():
        def embed(chosen):
            names.add(threading.current_thread().name.split("_")[0])
            return [encoder.encode(torch.tensor([texts[index]]))[0, 0] for index in chosen]

        with torch.inference_mode():
            vectors = read_in_batches(encoder, list(map(len, texts)), embed, batch_tokens=8192, label="reading")
        sums = score_long_texts(decoder, texts, context=6, stride=3)
        return torch.stack(vectors), torch.tensor(sums), score_texts(decoder, texts)

    alone = score()
    assert names == {"MainThread"}  # 1,040 tokens
    monkeypatch.setattr(cpu_workers, "MIN_BATCH_TOKENS", 64)
    names.clear()
    found = score()
    assert names == {"glassformer-worker"}
    for one, other in zip(alone[:2], found[:2], strict=True):
        torch.testing.assert_close(one, other)
    assert [pytest.approx(row, abs=1e-4) for row in alone[2]] == found[2]
