import json

import pytest
import torch

from glassformer.checkpoint import CorruptFolderError, load_model, new_folder, save_model, verify_folder
from glassformer.models import PRESETS, preset
from oracle import random_model


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_a_model_survives_its_folder_to_the_last_bit(name, tmp_path):
    model = random_model(preset(name), dtype=torch.float32)
    save_model(tmp_path / "model", model, {"tokenizer.json": "{}", "README.md": "a card"})
    loaded = load_model(tmp_path / "model")
    assert loaded.config == model.config
    assert {k: v.tolist() for k, v in loaded.state_dict().items()} == {
        k: v.tolist() for k, v in model.state_dict().items()
    }
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "README.md", "manifest.json"}


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder"
    with new_folder(path) as work:
        (work / "a").write_text("old")

    def fail():
        with new_folder(path, overwrite=True) as work:
            (work / "a").write_text("half")
            raise RuntimeError("by hand")

    with pytest.raises(RuntimeError, match="by hand"):
        fail()
    assert (path / "a").read_text() == "old"
    verify_folder(path)
    with new_folder(path, overwrite=True) as work:
        (work / "a").write_text("new")
    assert (path / "a").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


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
        manifest.write_text("{")
    else:
        manifest.write_text(json.dumps({"sha256": {"../outside": "0"}}))
    with pytest.raises(CorruptFolderError, match=r"model\.safetensors|manifest\.json"):
        load_model(folder)


def test_weights_of_another_model_are_named(tmp_path):
    save_model(tmp_path / "a", random_model(preset("tiny-gpt2"), dtype=torch.float32))
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with new_folder(tmp_path / "b") as work:
        (work / "config.json").write_text(json.dumps(config | {"d_ff": 8}))
        (work / "model.safetensors").write_bytes((tmp_path / "a" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"up_proj.weight is \(24, 16\): expected \(8, 16\)"):
        load_model(tmp_path / "b")
    with pytest.raises(FileNotFoundError, match="no such model folder"):
        load_model(tmp_path / "c")
