"""What the command line says when it is asked, or asked wrongly."""

import json
import subprocess
import sys

from glassformer.checkpoint.safe_files import seal_folder
from glassformer.pipelines.pipeline_registry import PIPELINES, pipeline_named
from glassformer.tasks.configs.shared import TaskData
from glassformer.tasks.task_registry import TASKS, data_named, task_named

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


def test_every_task_has_a_pipeline_that_knows_its_name():
    assert set(TASKS) == set(PIPELINES)
    for task in TASKS:
        assert task_named(task).name == pipeline_named(task).task == task
        assert issubclass(data_named(task), TaskData)
