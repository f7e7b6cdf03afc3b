"""What the command line says when it is asked, or asked wrongly."""

import json
import subprocess
import sys

import pytest

from glassformer.checkpoint.safe_files import seal_folder
from glassformer.tasks.registry import TASKS, config_named, data_named, task_named

WITHOUT_TORCH = """
import contextlib, io, json, sys
from glassformer import cli

for command in json.loads(sys.argv[1]):
    sys.argv = ["glassformer", *command]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        cli.main()
    assert told.getvalue(), command
    assert "torch" not in sys.modules, command
"""


def test_no_help_imports_torch(tmp_path):
    (tmp_path / "task.json").write_text(json.dumps({"task": "tagging", "data": {"tag_column": 2}}), encoding="utf-8")
    seal_folder(tmp_path)
    verbs = ["train", "eval", "convert", "bench", "demo", "run", "info", "completion"]
    commands = [["--help"], ["--version"], ["completion", "bash"], *([verb, "--help"] for verb in verbs)]
    commands += [["train", task, "--help"] for task in TASKS] + [["eval", str(tmp_path), "--help"]]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("task", TASKS)
def test_a_task_and_the_registry_name_the_same_config(task):
    assert task_named(task).Config is config_named(task)
    assert task_named(task).Data is data_named(task)
