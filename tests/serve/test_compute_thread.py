import asyncio
import threading
import time
from dataclasses import replace

import pytest

from glassformer.decoding import Engine, EngineFullError, GenerationConfig, generate
from glassformer.models import preset
from glassformer.serve import compute_thread
from glassformer.serve.api_errors import ApiError
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.engine_frames import EngineFaultError
from glassformer.serve.engine_run import EngineRun
from glassformer.serve.server_metrics import ServerMetrics
from oracle import random_model

CONFIG = GenerationConfig(max_new_tokens=6, min_new_tokens=6)


def lane_of(compute, **options):
    model = random_model(preset("tiny-gpt2"))
    return model, compute.add_lane(lambda: Engine(model, end=2, max_tokens=256, **options))


def run_of(compute, lane, prompts):
    async def wait():
        run = EngineRun(compute.submit(lane, prompts, CONFIG))
        compute.open_run(lane, run)
        await asyncio.wait_for(run.wait(), 30)
        return [request.texts[0].tokens for request in run.requests]

    return asyncio.run(wait())


def failing_step():
    raise RuntimeError("broken")


def wait_until_up(lane):
    """Wait until there is another engine."""
    until = time.monotonic() + 20
    while lane.down_until is not None:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_runs_are_computed_and_reported(compute):
    model, lane = lane_of(compute)
    expected = [texts[0].tokens for texts in generate(model, [[5, 6], [7]], CONFIG, end=2)]
    assert run_of(compute, lane, [[5, 6], [7]]) == expected
    assert not lane.has_work
    assert not lane.requests


def test_prompts_are_submitted_together_or_not_at_all(compute):
    _, lane = lane_of(compute)
    with pytest.raises(ValueError, match="expected ids"):
        compute.submit(lane, [[5], [10**6]], CONFIG)
    assert lane.engine.is_idle, "the prompt before the wrong one was withdrawn"
    with pytest.raises(EngineFullError, match="expected at most"):
        compute.submit(lane, [[5]], replace(CONFIG, do_sample=True, num_return_sequences=50))


def test_a_step_that_fails_fails_its_requests_and_no_later_ones(compute, monkeypatch, caplog):
    _, lane = lane_of(compute)
    first = lane.engine
    monkeypatch.setattr(first, "step", failing_step)
    with pytest.raises(EngineFaultError, match="broken"):
        run_of(compute, lane, [[5, 6]])
    wait_until_up(lane)
    assert lane.engine is not first
    assert len(run_of(compute, lane, [[5, 6]])[0]) == 6


def test_no_request_is_lost_while_another_engine_is_made(compute, monkeypatch, caplog):
    model = random_model(preset("tiny-gpt2"))
    gate, making = threading.Event(), threading.Event()
    gate.set()

    def make():
        making.set()
        assert gate.wait(10)
        return Engine(model, end=2, max_tokens=256)

    lane = compute.add_lane(make)
    gate.clear()
    making.clear()
    monkeypatch.setattr(lane.engine, "step", failing_step)
    (lost,) = compute.submit(lane, [[5, 6]], CONFIG)
    assert making.wait(10)
    assert isinstance(lost.error, EngineFaultError), "before another engine is made"
    with pytest.raises(ApiError, match="try again in a minute"):
        compute.submit(lane, [[5, 6]], CONFIG)
    gate.set()
    wait_until_up(lane)
    assert len(run_of(compute, lane, [[5, 6]])[0]) == 6


def test_an_engine_that_cannot_be_made_is_tried_again(compute, monkeypatch, caplog):
    monkeypatch.setattr(compute_thread, "RETRY_SECONDS", 0.05)
    model, failures = random_model(preset("tiny-gpt2")), []

    def make():
        if len(failures) in (1, 2):
            failures.append("no memory")
            raise RuntimeError("no memory")
        return Engine(model, end=2, max_tokens=256)

    lane, other = compute.add_lane(make), compute.add_lane(make)
    failures.append("a step")
    monkeypatch.setattr(lane.engine, "step", failing_step)
    with pytest.raises(EngineFaultError, match="broken"):
        run_of(compute, lane, [[5, 6]])
    assert len(run_of(compute, other, [[5, 6]])[0]) == 6
    wait_until_up(lane)
    assert failures == ["a step", "no memory", "no memory"]
    assert len(run_of(compute, lane, [[5, 6]])[0]) == 6


def test_closing_makes_no_other_engine(monkeypatch, caplog):
    compute, made = ComputeThread(ServerMetrics()), []
    model = random_model(preset("tiny-gpt2"))

    def make():
        made.append(1)
        return Engine(model, end=2, max_tokens=256)

    lane = compute.add_lane(make)
    monkeypatch.setattr(lane.engine, "step", failing_step)
    (lost,) = compute.submit(lane, [[5, 6]], CONFIG)
    compute._is_closing = True
    compute.start()
    compute.close()
    assert isinstance(lost.error, EngineFaultError)
    assert made == [1]


def test_jobs_of_one_kind_are_joined(compute):
    gate, sizes, shares = threading.Event(), [], (0.5, 0.25, 0.25, 0.75)

    def answer(texts):
        sizes.append(len(texts))
        return [text.upper() for text in texts]

    blocked = compute.answer("block", ["x"], lambda texts: gate.wait(10) and texts)
    jobs = [compute.answer("upper", [f"a{n}", f"b{n}"], answer, share=share) for n, share in enumerate(shares)]
    gate.set()
    blocked.result(10)
    assert [job.result(10) for job in jobs] == [[f"A{n}", f"B{n}"] for n in range(4)]
    assert sizes == [6, 2]


def test_a_wrong_job_does_not_harm_those_it_was_joined_with(compute):
    gate = threading.Event()

    def answer(texts):
        if "bad" in texts:
            raise ValueError("bad text")
        return texts

    blocked = compute.answer("block", ["x"], lambda texts: gate.wait(10) and texts)
    jobs = [compute.answer("same", [text], answer, share=0.1) for text in ("good", "bad", "fine")]
    gate.set()
    blocked.result(10)
    assert jobs[0].result(10) == ["good"]
    assert jobs[2].result(10) == ["fine"]
    with pytest.raises(ValueError, match="bad text"):
        jobs[1].result(10)


def test_closing_finishes_what_was_begun():
    compute = ComputeThread(ServerMetrics())
    compute.start()
    job = compute.answer("x", ["a"], list)
    compute.close()
    assert job.result(0) == ["a"]
    assert not compute.is_alive()
