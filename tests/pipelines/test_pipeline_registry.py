"""`task.json` of a model folder: names that it may have, and folders of version 0.1."""

import json

import pytest

from glassformer.checkpoint.safe_files import CorruptFolderError, seal_folder
from glassformer.pipelines.load import load
from glassformer.pipelines.pipeline_registry import TASK, read_about
from glassformer.pipelines.summarizer import Summarizer
from pipelines.tiny_pipelines import make


def test_a_folder_of_version_0_1_that_says_summarisation_still_loads(tmp_path):
    make(Summarizer).save(tmp_path / "m", "card")
    about = json.loads((tmp_path / "m" / TASK).read_text(encoding="utf-8"))
    assert about["task"] == "summarization"
    (tmp_path / "m" / TASK).write_text(json.dumps({**about, "task": "summarisation"}), encoding="utf-8")
    seal_folder(tmp_path / "m")
    assert read_about(tmp_path / "m")["task"] == "summarization"
    assert isinstance(load(tmp_path / "m"), Summarizer)


@pytest.mark.parametrize("name", ["sumarization", 3, None])
def test_an_unknown_task_is_refused(tmp_path, name):
    (tmp_path / TASK).write_text(json.dumps({"task": name}), encoding="utf-8")
    seal_folder(tmp_path)
    with pytest.raises(CorruptFolderError, match=r"names the task .*: expected one of classification"):
        read_about(tmp_path)
