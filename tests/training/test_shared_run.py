"""The run folder of several processes: one process writes it."""

import pytest

from glassformer.training.processes import Processes
from glassformer.training.run_folder import RunFolder
from glassformer.training.schedules import Plan
from glassformer.training.shared_run import FollowedRun, kept_texts, open_shared_run
from glassformer.training.train_config import TrainConfig


def test_one_process_opens_the_folder_as_usual(tmp_path):
    with open_shared_run(tmp_path / "out", Processes()) as run:
        assert type(run) is RunFolder
        run.bind("task", TrainConfig(), {})
        assert run.keep("tokenizer.json", lambda: "text") == "text"
        assert kept_texts(run) == {"tokenizer.json": "text"}
        run.begin(Plan(updates=3, warmup=1), 0)
        assert kept_texts(run) == {"tokenizer.json": "text"}


def test_another_process_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Processes, "gather", lambda self, value: [None, value])
    monkeypatch.setattr(Processes, "broadcast", lambda self, value: (tmp_path / "out.run", None, "id"))
    with open_shared_run(tmp_path / "out", Processes(1, 2)) as run:
        assert isinstance(run, FollowedRun)
        run.bind("task", TrainConfig(), {})
        run.kept.update({"head.json": "[1, 2]"})
        assert run.keep_json("head.json", lambda: pytest.fail("the leader has made it")) == [1, 2]
        assert not run.has_tokens("train")
        run.begin(Plan(updates=3, warmup=1), 0)
        run.correct_plan(Plan(updates=3, warmup=1))
    assert not any(tmp_path.iterdir())
