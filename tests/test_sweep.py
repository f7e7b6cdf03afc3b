"""The runs of a sweep do not disturb each other: an error costs its own job at most."""

import importlib
import os
from pathlib import Path

import pytest

STATE = {"is_usable": True}
"""Of this process; the jobs' processes have one each."""


def work(job):
    """Note the attempt; fail as the job says, and in every later job of the same process."""
    with Path(job["log"]).open("a", encoding="utf-8") as log:
        log.write(f"{job['name']} {os.getpid()}\n")
    n_before = Path(job["log"]).read_text(encoding="utf-8").count(f"{job['name']} ") - 1
    if n_before < job["n_failures"]:
        if job.get("dies"):
            os._exit(3)
        STATE["is_usable"] = False
    return {**job, "score": 1} if STATE["is_usable"] else {**job, "error": "unusable"}


@pytest.fixture
def run_all(monkeypatch):
    root = Path(__file__).parents[1]
    # Jobs run in fresh processes, which import this module by its name: wherever the tests were started.
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("sweep").run_all


def test_a_failed_run_is_tried_once_more_and_disturbs_no_other(run_all, tmp_path):
    log = tmp_path / "log"
    jobs = [
        {"name": "good", "n_failures": 0},
        {"name": "once", "n_failures": 1},
        {"name": "dies", "n_failures": 1, "dies": True},
        {"name": "always", "n_failures": 9},
        {"name": "last", "n_failures": 0},
    ]
    found = {one["name"]: one for one in run_all([{**job, "log": str(log)} for job in jobs], 1, work)}
    assert {name for name, one in found.items() if "error" in one} == {"always"}
    assert found["once"]["first_error"] == "unusable"
    assert found["dies"]["first_error"] == "the process ended with code 3"
    attempts = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    assert [name for name, _ in attempts] == ["good", "once", "once", "dies", "dies", "always", "always", "last"]
    process = [number for _, number in attempts]
    assert process[0] == process[1] != process[2] == process[3] != process[4] == process[5] != process[6] != process[7]


def test_no_job_is_taken_before_a_process_is_free_for_it(run_all, tmp_path):
    taken = []

    def todo():
        for name in "abc":
            taken.append(name)
            yield {"name": name, "n_failures": 0, "log": str(tmp_path / "log")}

    results = run_all(todo(), 1, work)
    assert next(results)["name"] == "a"
    assert taken == ["a"]
    assert [one["name"] for one in results] == ["b", "c"]
