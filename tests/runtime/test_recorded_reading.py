"""Recorded reading of prompts: the same logits and the same cache as a plain pass. Graphs themselves need a GPU."""

from dataclasses import replace

import pytest
import torch

from glassformer.runtime import recorded_reading
from glassformer.runtime.cache_pool import CachePool
from glassformer.runtime.cuda_graphs import CaptureError
from glassformer.runtime.pool_runner import PoolRunner
from glassformer.runtime.recorded_reading import RecordedReading, flops_per_token
from recording import DECODERS, make

TEXTS = [[5, 6, 7, 8], [9, 4], [11, 12, 13]]


@pytest.fixture
def small_sizes(monkeypatch):
    monkeypatch.setattr(recorded_reading, "ROW_SIZES", (1, 4))
    monkeypatch.setattr(recorded_reading, "TOKEN_SIZES", (4, 8))


def runner_for(name, reads_recorded):
    torch.manual_seed(0)
    model = make(DECODERS[name])
    runner = PoolRunner(model, CachePool(model, max_rows=5, max_tokens=80), is_recorded=False)
    runner.test_model = model  # a runner does not keep its model
    if reads_recorded:
        runner.__class__ = type("Recorded", (PoolRunner,), {"_records_reading": True})
    return runner


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("name", ["learned positions", "relative", "window"])
def test_recorded_passes_give_the_logits_and_the_cache_of_plain_ones(name):
    found = []
    for reads_recorded in (False, True):
        runner = runner_for(name, reads_recorded)
        with torch.inference_mode():
            before = runner.pool.take(1)
            scores = [runner.read(before, [[3, 4, 5, 6, 7]]).clone()]  # its row must not change
            rows = runner.pool.take(3)
            scores.append(runner.read(rows, TEXTS).clone())
            more = runner.pool.take(1)
            scores.append(runner.read(more, [[8, 9, 10]]).clone())
            for row in [*before, *rows, *more]:
                row.state = "running"
            scores += [runner.step(torch.tensor([[token]] * 5)).clone() for token in (4, 5, 6)]
        assert [row.length for row in rows] == [7, 5, 6]
        assert [row.tokens for row in rows] == TEXTS
        found.append(scores)
    for plain, recorded in zip(*found, strict=True):
        torch.testing.assert_close(recorded, plain)


@pytest.mark.usefixtures("small_sizes")
def test_only_prompts_that_begin_a_row_and_are_small_enough_are_recorded(monkeypatch):
    runner = runner_for("learned positions", reads_recorded=True)
    reading, (first, second) = runner._reading, runner.pool.take(2)
    assert reading.read([first, second], [[5] * 9, [5]]) is None  # longer than the largest size
    with torch.inference_mode():
        assert reading.read([first], [[5, 6]]) is not None
    first.length = 2
    assert reading.read([first], [[5, 6]]) is None  # it continues a text
    assert runner.reading_sizes == [(1, 4), (1, 8), (4, 4), (4, 8)]
    monkeypatch.setattr(recorded_reading, "MAX_TOKENS", 8)
    assert runner.reading_sizes == [(1, 4), (1, 8)]
    monkeypatch.setattr(recorded_reading, "MAX_FLOPS", 5 * flops_per_token(runner.model))
    assert runner.reading_sizes == [(1, 4)]


@pytest.mark.usefixtures("small_sizes")
def test_padding_stays_within_the_positions_of_the_model():
    torch.manual_seed(0)
    model = make(replace(DECODERS["learned positions"], max_len=6))
    runner = PoolRunner(model, CachePool(model, max_rows=5, max_tokens=80))
    (row,) = runner.pool.take(1)
    assert runner._reading.all_sizes() == [(1, 4), (4, 4)]
    assert runner._reading.read([row], [[5] * 5]) is None  # eight positions would be padded, and there are six


@pytest.mark.usefixtures("small_sizes")
def test_a_model_that_cannot_be_captured_is_read_as_usual():
    runner = runner_for("learned positions", reads_recorded=True)
    calls = []

    def refuse(tokens, view, last):
        calls.append(tokens.shape)
        raise CaptureError("operation not permitted when stream is capturing")

    reading = RecordedReading(runner.pool, refuse, 1.0)
    (row,) = runner.pool.take(1)
    assert reading.read([row], [[5, 6]]) is None
    assert reading.read([row], [[5, 6]]) is None
    assert len(calls) == 1  # it is not tried again
    reading.clear()  # another model
    assert reading.read([row], [[5, 6]]) is None
    assert len(calls) == 2


@pytest.mark.usefixtures("small_sizes")
def test_padding_rows_repeat_the_first_prompt():
    runner = runner_for("learned positions", reads_recorded=True)
    seen = []

    def note(tokens, view, last):
        seen.append((tokens.tolist(), view._rows.tolist(), last.tolist()))
        return torch.zeros(len(tokens), 7)

    rows = runner.pool.take(2)
    scores = RecordedReading(runner.pool, note, 1.0).read(rows, [[5, 6], [7]])
    tokens, places, last = seen[0]
    assert scores is not None
    assert scores.shape == (2, 7)
    assert [row[:3] for row in tokens] == [[5, 6, 0], [7, 0, 0], [5, 6, 0], [5, 6, 0]]
    assert places == [rows[0].index, rows[1].index, rows[0].index, rows[0].index]
    assert last == [1, 0, 1, 1]
