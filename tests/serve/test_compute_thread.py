import asyncio
import threading
from dataclasses import replace

import pytest

from glassformer.decoding import Engine, EngineFullError, GenerationConfig, generate
from glassformer.models import preset
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.engine_frames import EngineFaultError
from glassformer.serve.engine_run import EngineRun
from glassformer.serve.server_metrics import ServerMetrics
from oracle import random_model

CONFIG = GenerationConfig(max_new_tokens=6, min_new_tokens=6)


@pytest.fixture
def compute():
    found = ComputeThread(ServerMetrics())
    found.start()
    yield found
    found.close()


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

    def fail():
        raise RuntimeError("broken")

    monkeypatch.setattr(first, "step", fail)
    with pytest.raises(EngineFaultError, match="broken"):
        run_of(compute, lane, [[5, 6]])
    assert lane.engine is not first
    assert len(run_of(compute, lane, [[5, 6]])[0]) == 6


def test_jobs_of_one_kind_are_joined(compute):
    gate, sizes = threading.Event(), []

    def answer(texts):
        sizes.append(len(texts))
        return [text.upper() for text in texts]

    blocked = compute.answer("block", ["x"], lambda texts: gate.wait(10) and texts)
    jobs = [compute.answer("upper", [f"a{n}", f"b{n}"], answer) for n in range(3)]
    gate.set()
    blocked.result(10)
    assert [job.result(10) for job in jobs] == [[f"A{n}", f"B{n}"] for n in range(3)]
    assert sizes == [6]


def test_a_wrong_job_does_not_harm_those_it_was_joined_with(compute):
    gate = threading.Event()

    def answer(texts):
        if "bad" in texts:
            raise ValueError("bad text")
        return texts

    blocked = compute.answer("block", ["x"], lambda texts: gate.wait(10) and texts)
    jobs = [compute.answer("same", [text], answer) for text in ("good", "bad", "fine")]
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
