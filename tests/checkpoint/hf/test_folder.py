"""HF folders: shards, file names, and lazy tensors."""

import json

import pytest
import torch

from checkpoint import hf_models
from checkpoint.hf_comparison import close, make
from glassformer.checkpoint.hf import import_model
from glassformer.checkpoint.hf.folder import is_hf_folder, read_hf_folder, save_hf_folder
from glassformer.checkpoint.limits import UnsupportedModelError
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.models import build_model, preset


def test_sharded_folders_are_read(tmp_path):
    theirs = make("llama", 2)
    theirs.save_pretrained(tmp_path, max_shard_size="2KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    stored = read_hf_folder(tmp_path)
    ours = import_model(stored.config, stored.tensors)
    tokens = torch.randint(3, hf_models.VOCAB, (1, 5))
    with torch.no_grad():
        close(ours(tokens), theirs(tokens).logits)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_a_weights_index_may_not_name_files_outside_the_folder(name, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    index = {"weight_map": {"wte.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match="expected a file name without a folder"):
        read_hf_folder(tmp_path)


def test_a_folder_is_hfs_if_its_config_has_a_model_type(tmp_path):
    assert not is_hf_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"d_model": 8}', encoding="utf-8")
    assert not is_hf_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert is_hf_folder(tmp_path)


def test_pickled_weights_are_opened_only_when_allowed(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"holds no weights: expected model\.safetensors"):
        read_hf_folder(tmp_path)
    torch.save({"a": torch.arange(3.0)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CorruptFolderError, match="is a pickle, which can run code when it is opened"):
        read_hf_folder(tmp_path)
    tensors = read_hf_folder(tmp_path, allow_pickle=True).tensors
    assert tensors["a"].tolist() == [0.0, 1.0, 2.0]
    assert (tensors.shape("a"), tensors.stored_as("a")) == ((3,), "F32")


def test_added_values_that_would_change_the_model_are_refused(tmp_path):
    model = build_model(preset("tiny-bert-base", position_offset=2).with_head("none"))
    save_hf_folder(tmp_path / "same", model, values={"pad_token_id": 1}, texts={"vocab.txt": "a"})
    assert json.loads((tmp_path / "same" / "config.json").read_text(encoding="utf-8"))["model_type"] == "roberta"
    assert (tmp_path / "same" / "vocab.txt").read_text(encoding="utf-8") == "a"
    with pytest.raises(UnsupportedModelError, match=r"roberta with pad_token_id=5 cannot express .*position_offset"):
        save_hf_folder(tmp_path / "other", model, values={"pad_token_id": 5})
    assert not (tmp_path / "other").exists()
