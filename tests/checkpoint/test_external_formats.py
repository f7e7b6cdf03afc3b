"""Opening models of other libraries by their files."""

import pytest
import torch

from glassformer.checkpoint import (
    CorruptFolderError,
    load_model,
    new_folder,
    save_model,
)
from glassformer.checkpoint.external_formats import is_external, read_external, read_origin
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.models import preset
from oracle import random_model


def test_an_exported_folder_is_compared_with_its_manifest(tmp_path):
    folder = tmp_path / "hf"
    save_hf_folder(folder, random_model(preset("tiny-gpt2"), dtype=torch.float32))
    load_model(folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(CorruptFolderError, match=r"checksum differs.*remove .*manifest"):
        load_model(folder)
    (folder / "manifest.json").write_text('{"files": ["somebody else\'s"]}', encoding="utf-8")
    load_model(folder)


def test_a_file_that_is_no_model_is_refused_with_the_known_formats(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a model", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"notes\.txt: expected a model folder, a GGUF file, or a llama2\.c \.bin file"
    ):
        read_external(path)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        read_external(tmp_path / "nothing")


def test_files_and_hf_folders_are_external_and_our_folders_are_not(tmp_path):
    model = random_model(preset("tiny-gpt2"), dtype=torch.float32)
    save_hf_folder(tmp_path / "hf", model)
    save_model(tmp_path / "own", model)
    (tmp_path / "model.gguf").touch()
    assert is_external(tmp_path / "hf")
    assert is_external(tmp_path / "model.gguf")
    assert not is_external(tmp_path / "own")
    assert not is_external(tmp_path / "nothing")


def test_the_config_of_an_external_model_can_be_adapted_and_its_weights_converted(tmp_path):
    save_hf_folder(tmp_path / "hf", random_model(preset("tiny-gpt2"), dtype=torch.float32))
    body = load_model(tmp_path / "hf", dtype=torch.bfloat16, adapt=lambda config: config.with_head("none"))
    assert body.config.head == "none"
    assert {parameter.dtype for parameter in body.parameters()} == {torch.bfloat16}


def test_the_origin_of_a_converted_folder_is_read_through_its_manifest(tmp_path):
    assert read_origin(tmp_path) is None
    with new_folder(tmp_path / "own") as work:
        (work / "origin.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert read_origin(tmp_path / "own") == {"model_type": "gpt2"}
    (tmp_path / "own" / "origin.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"origin\.json has changed"):
        read_origin(tmp_path / "own")
