"""Several batches at a time on a CPU: the same texts in the same order, and errors that reach the caller."""

import threading
import time
from dataclasses import replace

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate
from glassformer.models import build_model, preset
from glassformer.runtime import cpu_workers
from glassformer.runtime.choose_runner import record_steps
from glassformer.runtime.cpu_workers import (
    compute_batches,
    count_readers,
    count_workers,
    limit_batch_tokens,
    limit_read_tokens,
)

CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=4),
    "beams": GenerationConfig(max_new_tokens=4, num_beams=2),
    "samples": GenerationConfig(max_new_tokens=4, do_sample=True, num_return_sequences=2, seed=3),
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_model(replace(preset("tiny-transformer-base"), d_model=64, n_heads=4)).eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_workers_write_the_texts_of_one_batch_at_a_time(name, model, two_threads, monkeypatch):
    torch.manual_seed(1)
    inputs = [torch.randint(5, 40, (length,)).tolist() for length in (9, 3, 7, 5) * 8]
    monkeypatch.setattr(cpu_workers, "MIN_BATCH_TOKENS", 64)
    names = set()
    usual = cpu_workers.compute_batches

    def noted(compute, batches, workers):
        def noting(batch):
            names.add((threading.current_thread().name.split("_")[0], torch.get_num_threads()))
            return compute(batch)

        return usual(noting, batches, workers)

    monkeypatch.setattr("glassformer.runtime.batches.compute_batches", noted)
    found = generate(model, inputs, CONFIGS[name], begin=1, end=3)
    assert names == {("glassformer-worker", 1)}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    alone = generate(model, inputs, CONFIGS[name], begin=1, end=3)
    assert [[text.tokens for text in texts] for texts in found] == [[text.tokens for text in texts] for texts in alone]
    assert ("MainThread", 1) in names


def test_results_are_in_order_and_batches_run_at_the_same_time():
    both = threading.Barrier(2, timeout=20)

    def compute(number):
        if number < 2:
            both.wait()
        assert torch.is_inference_mode_enabled()
        return number * 10

    assert list(compute_batches(compute, range(5), 2)) == [0, 10, 20, 30, 40]


def test_an_error_reaches_the_caller_and_ends_the_workers(two_threads):
    computed = []

    def compute(number):
        computed.append(number)
        if number == 1:
            raise ValueError("batch 1 is bad")
        time.sleep(0.002)  # on a busy machine, another worker may run on while the error is on its way
        return number

    with pytest.raises(ValueError, match="batch 1 is bad"):
        list(compute_batches(compute, range(1000), 2))
    assert len(computed) < 1000
    assert torch.get_num_threads() == 2
    assert not any(thread.name.startswith("glassformer-worker") for thread in threading.enumerate())


def test_a_caller_that_stops_early_ends_the_workers():
    found = compute_batches(lambda number: number, range(1000), 2)
    assert next(found) == 0
    found.close()
    assert not any(thread.name.startswith("glassformer-worker") for thread in threading.enumerate())


def test_little_work_is_one_batch_for_all_threads(model, two_threads):
    assert count_workers(model, [20] * 200, 1) == 2
    assert count_workers(model, [20], 1) == 1
    assert count_workers(model, [20] * 40, 1) == 1  # 800 tokens
    assert count_workers(model, [20] * 40, 4) == 2  # beams count, too
    assert count_workers(model, [200] * 20, 1) == 1  # 20 rows
    torch.set_num_threads(1)
    assert count_workers(model, [20] * 200, 1) == 1


def test_steps_that_belong_to_one_thread_have_no_workers(model, two_threads):
    lengths = [20] * 200
    assert count_workers(model, lengths, 1, needs_attention=True) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert count_workers(model, lengths, 1) == 1
    handle = model.register_forward_hook(lambda *_: None)
    assert count_workers(model, lengths, 1) == 1
    handle.remove()
    assert count_workers(model, lengths, 1) == 2
    recorded = build_model(preset("tiny-transformer-base")).eval()
    record_steps(recorded)
    assert count_workers(recorded, lengths, 1) == 1


def test_readers_are_as_many_as_the_work_allows(model, two_threads):
    assert count_readers(model, [1000] * 4) == 2  # few rows
    assert count_readers(model, [4000]) == 1
    assert count_readers(model, [20] * 40) == 1  # 800 tokens
    handle = model.register_forward_hook(lambda *_: None)
    assert count_readers(model, [1000] * 4) == 1
    handle.remove()
    assert limit_read_tokens(8192, 1, [1000] * 100) == 8192
    assert limit_read_tokens(8192, 2, [1000] * 100) == 4096  # both hold no more than one batch
    assert limit_read_tokens(8192, 2, [1000] * 16) == 2000  # four batches for each
    assert limit_read_tokens(8192, 16, [1000] * 100) == 1024
    assert limit_read_tokens(512, 16, [1000] * 100) == 512  # never more than asked for


@pytest.mark.parametrize(
    ("batch_tokens", "workers", "lengths", "expected"),
    [
        (4096, 1, [20] * 10_000, 4096),  # as asked for
        (4096, 2, [20] * 10_000, 4096),
        (4096, 2, [20] * 800, 2000),  # four batches for each worker
        (4096, 16, [20] * 800, 1024),
        (4096, 16, [20] * 10_000, 1024),  # all of them hold 16,384
        (4096, 2, [20] * 500 + [200], 3200),  # 16 of the longest
        (512, 2, [20] * 800, 512),  # never more than asked for
    ],
)
def test_batches_are_small_enough_for_all_workers(batch_tokens, workers, lengths, expected):
    assert limit_batch_tokens(batch_tokens, workers, lengths, 1) == expected
