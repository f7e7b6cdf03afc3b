"""`glassformer demo TASK`: training, the table of scores, the examples and the conversation."""

import io
import random
import sys
from dataclasses import replace

import pytest

from cli.interface_wheel import use_wheel
from glassformer.cli.demo_task import demo_task, talk
from glassformer.tasks import training_run as runs
from glassformer.tasks.classification import Classification
from glassformer.tasks.task import Task

WORDS = {
    "en": ["light", "door", "open", "closed", "lamp", "not", "and"],
    "de": ["licht", "tür", "offen", "zu", "lampe", "nicht", "und"],
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Two languages of seven words, and a model that is small enough for them."""
    chance = random.Random(0)
    texts = {
        language: {str(key): " ".join(chance.choices(words, k=chance.randint(2, 6))) for key in range(300)}
        for language, words in WORDS.items()
    }
    use_wheel(tmp_path, monkeypatch, texts)
    config = Classification.demo()
    config = replace(config, model=replace(config.model, vocab_size=300, d_model=32, d_ff=48))
    monkeypatch.setattr(Classification, "demo", classmethod(lambda cls: config))
    # The same number of updates on any machine, however busy.
    monkeypatch.setattr(runs, "_fitting", lambda *arguments: 100)
    monkeypatch.setattr(runs.Planner, "correct", lambda self, state: None)


def test_demo_trains_and_shows_scores_beside_a_baseline(small, tmp_path, capsys):
    demo_task("classification", ["offen und zu"], minutes=0.05, out=tmp_path / "demo")
    told = capsys.readouterr().out
    table = [line for line in told.splitlines() if line.startswith(("the commonest class", "this model"))]
    baseline, model = (float(line.split()[-2]) for line in table)
    assert 30 < baseline < 70 < model
    assert "examples that are not in the training data" in told
    assert "\n  offen und zu\n  de\n" in told
    assert told.count("\n\n  ") >= 6  # five examples, and the user's line
    assert (tmp_path / "demo" / "classification" / "task.json").is_file()
    demo_task("classification", minutes=0.05, out=tmp_path / "demo")
    again = capsys.readouterr().out
    assert "trained already" in again
    assert table[1] in again


class StopError(Exception):
    pass


def test_the_options_of_computing_reach_training(monkeypatch, tmp_path):
    threads, seen = [], []

    def train(self, folder):
        seen.append(self.config.train)
        raise StopError

    monkeypatch.setattr(Classification, "train", train)
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    with pytest.raises(StopError):
        demo_task("classification", out=tmp_path, device="cpu", precision="bf16", threads=1)
    assert (seen[0].device, seen[0].precision, seen[0].threads, threads) == ("cpu", "bf16", 1, [1])
    with pytest.raises(ValueError, match="--threads -1: expected 0 to 1,024"):
        demo_task("classification", out=tmp_path, threads=-1)


def test_a_task_without_a_demo_and_negative_minutes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Classification, "demo", Task.demo)
    with pytest.raises(ValueError, match="classification has no demo: expected your own data"):
        demo_task("classification", out=tmp_path)
    with pytest.raises(ValueError, match="--minutes -1: expected 0 or more"):
        demo_task("classification", minutes=-1, out=tmp_path)
    with pytest.raises(ValueError, match="'juggling' is not a task"):
        demo_task("juggling", out=tmp_path)


def test_an_unreadable_line_does_not_end_the_conversation(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def shout(line):
        if line == "bad":
            raise ValueError("cannot read this")
        return line.upper()

    monkeypatch.setattr(sys, "stdin", Terminal("one\nbad\ntwo\n\nthree\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    talk(shout, "Say something.")
    told = capsys.readouterr().out
    assert [word for word in ("Say something.", "ONE", "cannot read this", "TWO") if word in told] == [
        *("Say something.", "ONE", "cannot read this", "TWO")
    ]
    assert "THREE" not in told
