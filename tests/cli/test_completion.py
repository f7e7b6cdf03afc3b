"""Shell completion: the words come from the tables of the commands, and bash completes with them."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from glassformer import cli
from glassformer.cli.completion import completion, completion_words
from glassformer.tasks.task_registry import TASKS

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def script(capsys):
    """Return a function that returns the script for a shell."""

    def printed(shell):
        completion(shell)
        return capsys.readouterr().out

    return printed


def complete(script, folder, *typed):
    """Return what bash offers for the last of these words."""
    words = " ".join(map(shlex.quote, typed))
    program = f"{script}\nCOMP_WORDS=(glassformer {words}); COMP_CWORD={len(typed)}; _glassformer\n"
    program += 'for one in "${COMPREPLY[@]}"; do echo "$one"; done'
    command = ["bash", "--norc", "-c", program]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert result.stderr == ""
    return result.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["tr"], ["train"]),
        (["--v"], ["--version"]),
        (["train", "ta"], ["tagging"]),
        (["train", "tagging", "--tag-c"], ["--tag-column"]),
        (["train", "tagging", "--out", "m", "--tag-c"], ["--tag-column"]),
        (["train", "classification", "--tag-c"], []),
        (["demo", "sim"], ["similarity"]),
        (["demo", "translation", "--t"], ["--to", "--threads"]),
        (["demo", "tagging", "--to"], []),
        (["eval", "folder", "--tok"], ["--tokenized"]),
        (["run", "a model", "--max-"], ["--max-new-tokens"]),
        (["run", ""], []),  # so that bash completes the names of files
        (["train", "tagging", "--data", ""], []),
        (["help", "inf"], ["info"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["no-such-verb", "--o"], []),
        (["*", "--o"], []),
    ],
)
def test_bash_completes_commands_tasks_and_flags(typed, expected, script, tmp_path):
    (tmp_path / "--output-file").touch()  # which must not be taken for a match of a pattern
    assert complete(script("bash"), tmp_path, *typed) == expected


@needs_bash
def test_an_empty_word_offers_every_command_and_every_task(script, tmp_path):
    assert complete(script("bash"), tmp_path, "") == [*cli.VERBS, "help"]
    assert complete(script("bash"), tmp_path, "train", "") == list(TASKS)


@pytest.mark.parametrize(
    "command", [command for command in completion_words() if command.startswith(("train ", "demo "))]
)
def test_the_flags_of_a_task_are_those_of_its_help(command, monkeypatch, capsys):
    """Compare with the help that the command prints."""
    monkeypatch.setattr(sys, "argv", ["glassformer", *command.split(), "--help-all"])
    try:
        cli.main()
    except SystemExit as stop:
        assert not stop.code  # noqa: PT017
    shown = set(re.findall(r"^  --(?:\[no-\])?([\w-]+)", capsys.readouterr().out, re.M))
    assert shown
    assert {f"--{name}" for name in shown} == {
        flag for flag in completion_words()[command] if not flag.startswith(("--help", "--no-"))
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_script_has_every_word_and_says_how_to_install_it(shell, script):
    text = script(shell)
    assert f"glassformer completion {shell}" in text.splitlines()[0]
    for command, words in completion_words().items():
        assert f" '{command}'" in text
        assert " ".join(words) in text


def test_every_verb_can_be_completed():
    assert set(cli.VERBS) <= set(completion_words())


def test_no_word_needs_quotes():
    words = [word for words in completion_words().values() for word in words]
    assert all(re.fullmatch(r"[\w-]+", word) for word in words)
