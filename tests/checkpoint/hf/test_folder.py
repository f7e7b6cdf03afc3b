"""HF folders: shards, file names, and lazy tensors."""

import json

import pytest
import torch

from checkpoint import hf_models
from checkpoint.cached_repositories import put_in_cache
from checkpoint.hf_comparison import close, make, same_numbers
from checkpoint.hf_models import small_bert
from glassformer.checkpoint import load_model
from glassformer.checkpoint.hf import import_model
from glassformer.checkpoint.hf.folder import is_hf_folder, read_hf_folder, save_hf_folder
from glassformer.checkpoint.limits import UnsupportedModelError
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.models import build_model, preset


def edit_config(folder, **changes):
    """Change values of a config.json. None removes a key."""
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    values = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(values), encoding="utf-8")


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
    for text in ('{"model_type": "gpt2"}', '{"architectures": ["GPT2Model"]}'):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        assert is_hf_folder(tmp_path)


def test_a_folder_without_model_type_is_read_by_the_class_that_saved_it(tmp_path):
    theirs = small_bert("Bert", "ForMaskedLM")
    theirs.save_pretrained(tmp_path)
    edit_config(tmp_path, model_type=None)
    assert same_numbers(load_model(tmp_path), theirs, 0)


def test_a_folder_whose_config_names_no_family_says_so(tmp_path):
    small_bert("Bert", "ForMaskedLM").save_pretrained(tmp_path)
    edit_config(tmp_path, model_type=None, architectures=None)
    with pytest.raises(
        UnsupportedModelError, match=r"has no model_type and no architectures: expected .*bert, roberta"
    ):
        load_model(tmp_path)


def test_a_sharded_snapshot_of_the_download_cache_is_read(tmp_path):
    theirs = make("llama", 2)
    theirs.save_pretrained(tmp_path / "saved", max_shard_size="2KB")
    snapshot = put_in_cache(tmp_path / "saved", tmp_path / "hub", "someone/small-llama")
    assert same_numbers(load_model(snapshot), theirs, 0)


@pytest.mark.parametrize("n_shards", [1, 2])
def test_pickles_from_before_torch_1_6_are_read(n_shards, tmp_path):
    theirs = small_bert("Bert", "ForMaskedLM")
    theirs.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    state = list(theirs.state_dict().items())
    for number in range(n_shards):
        name = "pytorch_model.bin" if n_shards == 1 else f"pytorch_model-0000{number + 1}-of-00002.bin"
        part = dict(state[number::n_shards])
        torch.save(part, tmp_path / name, _use_new_zipfile_serialization=False)
    assert same_numbers(load_model(tmp_path, allow_pickle=True), theirs, 0)
    with pytest.raises(CorruptFolderError, match="--allow-pickle"):
        load_model(tmp_path)


class Hostile:
    """An object whose pickle calls a function."""

    def __reduce__(self):
        return print, ("this must never be printed",)


def test_an_old_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    torch.save({"a": Hostile()}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(CorruptFolderError, match=r"pytorch_model\.bin cannot be read"):
        read_hf_folder(tmp_path, allow_pickle=True)
    assert "never" not in capsys.readouterr().out


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
