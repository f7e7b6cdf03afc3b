"""Finding tasks by name: every task, old names and misspelled names."""

import pytest

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.train import train
from glassformer.pipelines.pipeline_registry import PIPELINES, pipeline_named
from glassformer.tasks.configs.shared import TaskData
from glassformer.tasks.task_registry import TASKS, data_named, task_named


def test_the_old_spelling_of_a_task_names_the_new_one():
    with pytest.raises(UsageError, match="the task summarisation is called summarization now: use train summarization"):
        train(["summarisation", "--out", "m"])
    with pytest.raises(ValueError, match="called summarization now"):
        task_named("summarisation")


def test_a_misspelled_task_gets_a_suggestion():
    with pytest.raises(ValueError, match="'sumarization' is not a task: did you mean 'summarization'"):
        task_named("sumarization")


def test_every_task_has_a_pipeline_that_knows_its_name():
    assert set(TASKS) == set(PIPELINES)
    for task in TASKS:
        assert task_named(task).name == pipeline_named(task).task == task
        assert issubclass(data_named(task), TaskData)
