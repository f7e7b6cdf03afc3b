"""`glassformer demo`: which demo the first word chooses, and what wrong usage says."""

import inspect
import subprocess
import sys

import pytest

from cli.interface_wheel import use_wheel
from glassformer.cli import main
from glassformer.cli.demo import DEFAULT_TASK, demo_function, demos
from glassformer.tasks.task_registry import TASKS

HELP_ALONE = """
import sys
from glassformer.cli import main
sys.argv = ["glassformer", "--help"]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


def glassformer(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "glassformer", *arguments], capture_output=True, text=True, timeout=600, check=False
    )


def test_help_does_not_import_torch():
    result = glassformer("demo", "--help")
    assert result.returncode == 0
    assert "The language to translate into" in result.stdout
    result = subprocess.run([sys.executable, "-c", HELP_ALONE], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_wrong_usage_is_one_line_on_stderr(tmp_path):
    assert glassformer("demo", "--stepz", "3").returncode == 2
    assert glassformer("dmeo").returncode == 2
    result = glassformer("run", str(tmp_path / "nowhere"))
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_first_word_chooses_the_task(tmp_path, monkeypatch, capsys):
    use_wheel(tmp_path, monkeypatch, {"en": {"1": "a light"}, "de": {"1": "ein licht"}})

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


def test_a_misspelled_task_is_refused_with_a_suggestion():
    with pytest.raises(ValueError, match="'taging' is not a task: did you mean 'tagging'"):
        demos(["taging"])


def test_a_task_without_a_demo_is_no_line_for_the_demo_of_another():
    for task in ("chat", "preference"):
        with pytest.raises(ValueError, match=rf"{task} has no demo.*train {task} --help"):
            demos([task])


def test_every_task_has_a_demo_function_and_one_is_the_default():
    functions = {task: demo_function(task) for task in TASKS}
    assert DEFAULT_TASK in functions
    for function in functions.values():
        options = {"lines", "minutes", "out", "seed", "device", "precision", "threads"}
        assert options <= set(inspect.signature(function).parameters)
