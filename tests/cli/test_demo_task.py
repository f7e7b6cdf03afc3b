"""Any task's demo, on a small wheel made here; and a command line whose reader has had enough."""

import hashlib
import io
import json
import os
import random
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest

from glassformer.cli import main
from glassformer.cli.demo_task import demo_task, talk
from glassformer.data.corpora import catalog as corpora
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
    path = tmp_path / corpora.INTERFACE_WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for language, words in WORDS.items():
            texts = {str(key): " ".join(chance.choices(words, k=chance.randint(2, 6))) for key in range(300)}
            archive.writestr(f"pkg/components/lamp/translations/{language}.json", json.dumps(texts))
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(corpora, "INTERFACE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    config = Classification.demo()
    config = replace(config, model=replace(config.model, vocab_size=300, d_model=32, d_ff=48))
    monkeypatch.setattr(Classification, "demo", classmethod(lambda cls: config))
    # As many updates on any machine, however busy it is.
    monkeypatch.setattr(runs, "_fitting", lambda *arguments: 100)
    monkeypatch.setattr(runs.Planner, "correct", lambda self, state: None)


def test_a_demo_trains_beside_a_baseline_and_shows_examples(small, tmp_path, capsys):
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


def test_a_task_without_a_demo_and_no_time_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Classification, "demo", Task.demo)
    with pytest.raises(ValueError, match="classification has no demo: expected data of your own"):
        demo_task("classification", out=tmp_path)
    with pytest.raises(ValueError, match="--minutes -1: expected 0 or more"):
        demo_task("classification", minutes=-1, out=tmp_path)
    with pytest.raises(ValueError, match="'juggling' is not a task"):
        demo_task("juggling", out=tmp_path)


def test_a_line_that_cannot_be_read_does_not_end_the_talk(monkeypatch, capsys):
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


def test_the_first_word_chooses_the_task(small, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["glassformer", "demo", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code, told.out + told.err

    code, told = call("--help")
    assert code == 0
    assert "classification  a classifier from labeled texts" in told
    assert "The language to translate into" in told
    code, told = call("classification", "--help")
    assert code == 0
    assert "--minutes" in told
    assert "translate" not in told
    for arguments in (["translation", "--to", "tlh"], ["--to", "tlh"], ["a line", "--to", "tlh"]):
        code, told = call(*arguments)
        assert code == 1
        assert "no language 'tlh'" in told


@pytest.mark.parametrize(
    "arguments", [["--help"], ["demo", "--help"], ["train", "classification", "--help"], ["--version"]]
)
def test_a_closed_pipe_ends_it_in_silence(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "glassformer", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
    finally:
        os.close(writer)
    assert result.returncode == 141
    assert result.stderr == ""


def test_a_slip_of_the_finger_trains_nothing():
    from glassformer.cli.demo import demos

    with pytest.raises(ValueError, match="'taging' is not a task: did you mean 'tagging'"):
        demos(["taging"])
