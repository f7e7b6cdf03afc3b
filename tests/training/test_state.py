"""Checkpoints are read through their manifest only."""

import json
import math
from functools import partial

import pytest
import torch
from torch import nn

from glassformer.checkpoint import CorruptFolderError
from glassformer.checkpoint.safe_files import seal_folder
from glassformer.training.state import (
    Evaluation,
    TrainState,
    average_parameters,
    load_checkpoint,
    load_newest,
    newest_state,
    save_checkpoint,
)


@pytest.fixture
def run():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_files_not_listed_in_the_manifest_are_not_read(run, name, tmp_path):
    path = save_checkpoint(tmp_path, TrainState(position=3), *run)
    manifest = path / "manifest.json"
    sums = json.loads(manifest.read_text(encoding="utf-8"))["sha256"]
    del sums[name]
    manifest.write_text(json.dumps({"sha256": sums}), encoding="utf-8")
    readers = [partial(load_checkpoint, path, *run)]
    if name == "model.safetensors":
        readers.append(partial(average_parameters, tmp_path, [3], dict))
    for read in readers:
        with pytest.raises(CorruptFolderError, match=rf"{name} is not in manifest\.json"):
            read()


@pytest.mark.parametrize("contents", ["[]", "{}", '{"evaluations": 3}', '{"evaluations": [], "unknown": 1}'])
def test_a_checkpoint_with_an_invalid_state_is_skipped(run, contents, tmp_path):
    save_checkpoint(tmp_path, TrainState(position=2), *run)
    path = save_checkpoint(tmp_path, TrainState(position=3), *run)
    (path / "state.json").write_text(contents, encoding="utf-8")
    seal_folder(path)
    told = []
    assert load_newest(tmp_path, *run, told.append).position == 2
    assert len(told) == 1
    assert str(path / "state.json") in told[0]


def test_a_nan_score_is_saved_in_a_checkpoint(run, tmp_path):
    state = TrainState(position=3, evaluations=[Evaluation(3, 3, {"perplexity": float("nan"), "bleu": 7.5})])
    path = save_checkpoint(tmp_path, state, *run)
    for found in (load_checkpoint(path, *run), newest_state(tmp_path)):
        assert found.position == 3
        scores = found.evaluations[0].scores
        assert math.isnan(scores.pop("perplexity"))
        assert scores == {"bleu": 7.5}
