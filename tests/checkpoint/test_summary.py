"""Summaries of models are read from headers and agree with the loaded model."""

import json

import pytest
import torch

from checkpoint.hostile_files import seal
from glassformer.checkpoint import CorruptFolderError, load_model, new_folder, save_model
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.checkpoint.summary import stored_format, summarize
from glassformer.models import preset
from oracle import random_model


def save(path, model, kind):
    if kind == "own":
        save_model(path, model)
    elif kind == "hf":
        save_hf_folder(path, model)
    else:
        write_gguf(path, model, numbers="f16")
    return path


@pytest.mark.parametrize(("kind", "family"), [("own", None), ("hf", "llama"), ("gguf", "llama")])
def test_the_summary_agrees_with_the_loaded_model(kind, family, tmp_path):
    path = save(tmp_path / "model", random_model(preset("tiny-llama"), dtype=torch.float32), kind)
    found, model = summarize(path), load_model(path)
    assert found.config == model.config
    assert found.n_parameters == model.n_parameters()
    assert found.family == family
    assert (found.external is None) == (kind == "own")
    assert sum(found.stored.values()) == found.n_parameters
    assert next(iter(found.stored)) == ("F16" if kind == "gguf" else "F32"), "most frequent first"
    assert stored_format(path) == next(iter(found.stored))


def test_the_format_of_a_missing_model_is_left_to_the_loader(tmp_path):
    assert stored_format(tmp_path / "absent") == "F32"


def test_the_family_of_a_converted_folder_is_that_of_its_original(tmp_path):
    save_model(
        tmp_path / "m",
        random_model(preset("tiny-gpt2"), dtype=torch.float32),
        {"origin.json": '{"model_type": "gpt2"}'},
    )
    assert summarize(tmp_path / "m").family == "gpt2"


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path):
    save_model(tmp_path / "m", random_model(preset("tiny-gpt2"), dtype=torch.float32))
    config = tmp_path / "m" / "config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(values | {"d_ff": values["d_ff"] + 1}), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"config\.json has changed"):
        summarize(tmp_path / "m")
    seal(tmp_path / "m")
    with pytest.raises(CorruptFolderError, match=r"model\.safetensors holds [\d,]+ numbers: expected [\d,]+ by config"):
        summarize(tmp_path / "m")


def test_a_path_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        summarize(tmp_path / "nothing")
    with new_folder(tmp_path / "other") as work:
        (work / "a.txt").write_text("a", encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"config\.json is missing"):
        summarize(tmp_path / "other")
