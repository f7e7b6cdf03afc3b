import asyncio
import threading

import pytest

from glassformer import build_model, preset
from glassformer.serve import text_jobs
from glassformer.serve.text_jobs import answer_in_jobs, divide


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([10] * 5, [5]),
        ([1] * 130, [64, 64, 2]),
        ([50, 50, 50], [2, 1]),
        ([500, 1, 500], [1, 1, 1]),
    ],
)
def test_a_part_has_few_texts_and_few_characters(lengths, expected):
    parts = [part for part, _ in divide(["x" * length for length in lengths], 100)]
    assert [len(part) for part in parts] == expected
    assert [len(text) for part in parts for text in part] == lengths


def ask(compute, requests):
    """Answer several requests while the computing thread is held up. Returns the results and the texts of each job."""
    gate, calls, model = threading.Event(), [], build_model(preset("tiny-bert-base"))

    def answer(texts):
        calls.append(texts)
        return [text.upper() for text in texts]

    async def run():
        compute.answer("block", ["x"], lambda texts: gate.wait(10) and texts)
        jobs = [asyncio.create_task(answer_in_jobs(compute, "upper", model, texts, answer)) for texts in requests]
        await asyncio.sleep(0)
        gate.set()
        return [await job for job in jobs]

    return asyncio.run(run()), calls


def test_texts_that_one_job_cannot_hold_are_not_joined_again(compute, monkeypatch):
    monkeypatch.setattr(text_jobs, "MAX_CHARACTERS", 100)
    texts = ["a" * 40, "b" * 40, "c" * 40, "d" * 40, "e" * 40]
    (found,), calls = ask(compute, [texts])
    assert found == [text.upper() for text in texts]
    assert [len(call) for call in calls] == [2, 2, 1]


def test_short_texts_of_several_requests_are_joined(compute):
    found, calls = ask(compute, [["a", "b"], ["c"], ["d"]])
    assert found == [["A", "B"], ["C"], ["D"]]
    assert calls == [["a", "b", "c", "d"]]
