"""Trackers call wandb and MLflow correctly; small fakes take their places."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from glassformer.cli.train import train
from glassformer.training.callbacks import EvaluationEvent, SaveEvent, StepEvent
from glassformer.training.trackers import mlflow_callbacks, wandb_callbacks


class FakeRun:
    def __init__(self, **settings):
        self.settings, self.logged, self.summary, self.is_finished = settings, [], {}, False

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.is_finished = True


@pytest.fixture
def wandb(monkeypatch):
    module = ModuleType("wandb")
    module.run, module.runs = None, []
    module.init = lambda **settings: module.runs.append(FakeRun(**settings)) or module.runs[-1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    """A fake that is as strict about names and sizes as MLflow."""
    module = ModuleType("mlflow")
    module.calls, module.active = [], None

    def note(name):
        return lambda *values, **named: module.calls.append((name, *values, *named.values()))

    def log_metrics(metrics, step):
        assert all(re.fullmatch(r"[A-Za-z0-9_./ -]+", name) for name in metrics)
        module.calls.append(("log_metrics", metrics, step))

    def log_params(params):
        assert len(params) <= 100
        module.calls.append(("log_params", params))

    for name in ("set_experiment", "start_run", "set_tag", "end_run"):
        setattr(module, name, note(name))
    module.active_run = lambda: module.active
    module.log_metrics, module.log_params = log_metrics, log_params
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def tell(callbacks):
    """The events of a run of four updates."""
    for update in range(1, 5):
        callbacks["on_step"](StepEvent(update, 1.5, 0.1, 2.0, 30, 0.1, 0))
    callbacks["on_evaluation"](EvaluationEvent(4, {"f1": 50.0, "f1_a:ü": 40.0}))
    callbacks["on_save"](SaveEvent(4, Path("m.run/checkpoints/step-00000004"), False, {}))
    callbacks["on_save"](SaveEvent(4, Path("m"), True, {"f1": 60.0}))


STEP = {"train/loss": 1.5, "train/learning_rate": 0.1, "train/gradient_norm": 2.0}


def test_wandb_receives_losses_scores_and_the_end(wandb):
    callbacks = wandb_callbacks("mine", name="first", config={"lr": 1}, every=2, mode="offline")
    assert not wandb.runs, "a command that fails before its first update leaves no run"
    tell(callbacks)
    (run,) = wandb.runs
    assert run.settings == {"project": "mine", "name": "first", "config": {"lr": 1}, "mode": "offline"}
    assert run.logged == [(2, STEP), (4, STEP), (4, {"valid/f1": 50.0, "valid/f1_a:ü": 40.0})]
    assert run.summary == {"final/f1": 60.0, "model_folder": "m"}
    assert run.is_finished


def test_an_active_wandb_run_is_used_and_left_open(wandb):
    wandb.run = FakeRun()
    tell(wandb_callbacks(every=4))
    assert not wandb.runs
    assert [step for step, _ in wandb.run.logged] == [4, 4]
    assert not wandb.run.is_finished


def test_mlflow_receives_losses_scores_settings_and_the_end(mlflow):
    settings = {"train": {"lr": 1, "steps": [2]}, "many": {str(n): n for n in range(150)}}
    callbacks = mlflow_callbacks("mine", name="first", config=settings, every=4)
    assert not mlflow.calls
    tell(callbacks)
    names = [name for name, *_ in mlflow.calls]
    assert names == [
        "set_experiment",
        "start_run",
        "log_params",
        "log_params",
        *["log_metrics"] * 3,
        "set_tag",
        "end_run",
    ]
    assert {"train.lr": 1, "train.steps": [2]}.items() <= mlflow.calls[2][1].items()
    assert mlflow.calls[4:8] == [
        ("log_metrics", STEP, 4),
        ("log_metrics", {"valid/f1": 50.0, "valid/f1_a__": 40.0}, 4),
        ("log_metrics", {"final/f1": 60.0}, 4),
        ("set_tag", "model_folder", "m"),
    ]


def test_an_active_mlflow_run_is_used_and_left_open(mlflow):
    mlflow.active = SimpleNamespace()
    tell(mlflow_callbacks())
    assert {name for name, *_ in mlflow.calls} == {"log_metrics", "set_tag"}


@pytest.mark.parametrize(("make", "package"), [(wandb_callbacks, "wandb"), (mlflow_callbacks, "mlflow")])
def test_a_missing_package_and_a_wrong_interval_are_clear_errors(make, package, monkeypatch):
    with pytest.raises(ValueError, match="every=0: expected at least 1"):
        make(every=0)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"is not installed: pip install {package}$"):
        make()


def test_track_on_the_command_line_logs_a_run(wandb, tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "one two\ta\nthree four\tb\n" * 30, encoding="utf-8")
    sizes = {"vocab-size": 300, "d-model": 16, "n-heads": 2, "d-ff": 16, "n-encoder-layers": 1, "updates": 10}
    flags = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    files = ["--data", f"{tmp_path / 'a.tsv'}", "--valid", f"{tmp_path / 'a.tsv'}", "--out", f"{tmp_path / 'm'}"]
    train(["classification", *files, *flags, "--warmup", "1", "--device", "cpu", "--track", "wandb"])
    (run,) = wandb.runs
    assert run.settings["project"] == "glassformer"
    assert run.settings["name"] == "m"
    assert run.settings["config"]["train"]["updates"] == 10
    assert [step for step, _ in run.logged] == [10, 10]
    assert run.is_finished
    assert capsys.readouterr().out.endswith("(60 validation examples from a.tsv)\n")
