"""Our model folders: saved models load exactly, and damage is refused."""

import json
import re
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint.hostile_files import seal
from glassformer.checkpoint import (
    CorruptFolderError,
    load_model,
    new_folder,
    save_model,
)
from glassformer.checkpoint.model_folder import READ_FILES
from glassformer.models import PRESETS, preset
from oracle import random_model


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_a_saved_model_loads_bit_for_bit(name, tmp_path):
    model = random_model(preset(name), dtype=torch.float32)
    save_model(tmp_path / "model", model, {"tokenizer.json": "{}", "README.md": "a card"})
    loaded = load_model(tmp_path / "model")
    assert loaded.config == model.config
    assert {k: v.tolist() for k, v in loaded.state_dict().items()} == {
        k: v.tolist() for k, v in model.state_dict().items()
    }
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "README.md", "manifest.json"}


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "escape"])
def test_damage_is_found_and_named(tmp_path, damage):
    folder = tmp_path / "model"
    save_model(folder, random_model(preset("tiny-gpt2"), dtype=torch.float32))
    weights, manifest = folder / "model.safetensors", folder / "manifest.json"
    if damage == "flip":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-5])
    elif damage == "remove":
        weights.unlink()
    elif damage == "manifest":
        manifest.write_text("{", encoding="utf-8")
    else:
        manifest.write_text(json.dumps({"sha256": {"../outside": "0"}}), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"model\.safetensors|manifest\.json"):
        load_model(folder)


@pytest.mark.parametrize("unlisted", ["model.safetensors", "config.json", "all"])
def test_files_not_listed_in_the_manifest_are_not_read(tmp_path, unlisted):
    folder = tmp_path / "model"
    save_model(folder, random_model(preset("tiny-gpt2"), dtype=torch.float32))
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    manifest = folder / "manifest.json"
    sums = json.loads(manifest.read_text(encoding="utf-8"))["sha256"]
    sums.pop("model.safetensors")
    sums.pop(unlisted, None)
    manifest.write_text(json.dumps({"sha256": {} if unlisted == "all" else sums}), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match=r"is not in manifest\.json"):
        load_model(folder)


def test_no_file_that_is_read_may_be_added_to_a_folder(tmp_path):
    folder = tmp_path / "model"
    save_model(folder, random_model(preset("tiny-gpt2"), dtype=torch.float32), {"README.md": "a card"})
    for name in READ_FILES:
        file = folder / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text("{}", encoding="utf-8")
            with pytest.raises(CorruptFolderError, match=rf"{re.escape(str(file))} is not in manifest\.json"):
                load_model(folder)
            file.unlink()
    for name in ("notes.txt", "scores.json"):  # files that are never read
        (folder / name).write_text("{}", encoding="utf-8")
    load_model(folder)


def test_weights_of_another_model_are_named(tmp_path):
    save_model(tmp_path / "a", random_model(preset("tiny-gpt2"), dtype=torch.float32))
    config = json.loads((tmp_path / "a" / "config.json").read_text(encoding="utf-8"))
    with new_folder(tmp_path / "b") as work:
        (work / "config.json").write_text(json.dumps(config | {"d_ff": 8}), encoding="utf-8")
        (work / "model.safetensors").write_bytes((tmp_path / "a" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"up_proj.weight is \(24, 16\): expected \(8, 16\)"):
        load_model(tmp_path / "b")
    with pytest.raises(FileNotFoundError, match="no such model folder"):
        load_model(tmp_path / "c")


def test_a_missing_tensor_larger_than_all_others_is_named(tmp_path):
    save_model(tmp_path / "m", random_model(preset("tiny-gpt2", vocab_size=20_000)))
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    table = max(tensors, key=lambda name: tensors[name].numel())
    del tensors[table]
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    seal(tmp_path / "m")
    with pytest.raises(ValueError, match=f"vocab_size=20000: expected at most .* Missing tensors: {re.escape(table)}$"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-marian", "tiny-albert-base"])
def test_modules_are_announced_when_they_are_filled_and_may_be_replaced(name, tmp_path):
    model = random_model(preset(name), dtype=torch.float32)
    save_model(tmp_path / "model", model)
    filled, replaced = [], []

    def when_filled(module):
        assert not any(parameter.is_meta for parameter in module.parameters())
        filled.append(type(module).__name__)
        for key, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(module, key, torch.nn.Identity())
                replaced.append(weakref.ref(child))

    loaded = load_model(tmp_path / "model", when_filled=when_filled)
    assert len(filled) == sum(any(True for _ in module.parameters()) for module in model.modules())
    assert filled[-1] == type(model).__name__
    assert replaced
    assert all(reference() is None for reference in replaced)  # their memory is free while the rest is read
    assert not any(parameter.is_meta for parameter in loaded.parameters())


def test_weights_are_converted_to_the_dtype_that_is_asked_for(tmp_path):
    model = random_model(preset("tiny-gpt2"), dtype=torch.float32)
    save_model(tmp_path / "model", model)
    loaded = load_model(tmp_path / "model", dtype=torch.bfloat16)
    for one, two in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, two.bfloat16())
