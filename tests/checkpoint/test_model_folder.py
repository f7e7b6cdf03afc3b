import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint.hostile_files import seal
from glassformer.checkpoint import (
    CorruptFolderError,
    load_model,
    model_folder,
    new_folder,
    save_model,
    verify_folder,
)
from glassformer.checkpoint.hf.folder import save_hf_folder
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


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder"
    with new_folder(path) as work:
        (work / "a").write_text("old", encoding="utf-8")

    def fail():
        with new_folder(path, overwrite=True) as work:
            (work / "a").write_text("half", encoding="utf-8")
            raise RuntimeError("by hand")

    with pytest.raises(RuntimeError, match="by hand"):
        fail()
    assert (path / "a").read_text(encoding="utf-8") == "old"
    verify_folder(path)
    with new_folder(path, overwrite=True) as work:
        (work / "a").write_text("new", encoding="utf-8")
    assert (path / "a").read_text(encoding="utf-8") == "new"
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
            file.write_text("{}", encoding="utf-8")
            with pytest.raises(CorruptFolderError, match=rf"{re.escape(str(file))} is not in manifest\.json"):
                load_model(folder)
            file.unlink()
    for name in ("notes.txt", "scores.json"):  # nobody reads these
        (folder / name).write_text("{}", encoding="utf-8")
    load_model(folder)


def test_the_list_of_files_that_are_read_is_complete():
    source = Path(model_folder.__file__).parents[1]
    external = source / "checkpoint" / "external_formats.py"
    readers = [*(source / "text").glob("*.py"), *(source / "tasks").glob("*.py"), external]
    found = set()
    for path in readers:
        text = path.read_text(encoding="utf-8")
        found |= {*re.findall(r"""(?:folder|path) / [("']*([\w.]+\.(?:json|txt|jinja|model|spm|safetensors))""", text)}
    assert len(found) > 10
    assert found <= {*READ_FILES}


BAD_MANIFESTS = [
    ({"sha256": None}, "no table of checksums"),
    ({}, "no table of checksums"),
    ([], "expected a JSON object"),
    ({"sha256": {"a": "0" * 63}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a": "G" * 64}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a": "0" * 64 + "\n"}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a": 7}}, "expected 64 hexadecimal digits"),
    ({"sha256": {"a/b": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"..": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"a\x00": "0" * 64}}, "expected a plain file name"),
    ({"sha256": {"manifest.json": "0" * 64}}, "expected a plain file name"),
    ('{"sha256": {"a": "x", "a": "y"}}', "the key 'a' occurs twice"),
    ("[" * 100_000, "cannot be read"),
    ('{"sha256": NaN}', "it holds NaN"),
]


@pytest.mark.parametrize(("manifest", "message"), BAD_MANIFESTS, ids=range(len(BAD_MANIFESTS)))
def test_a_manifest_that_is_not_one_is_refused(tmp_path, manifest, message):
    (tmp_path / "manifest.json").write_text(
        manifest if isinstance(manifest, str) else json.dumps(manifest), encoding="utf-8"
    )
    (tmp_path / "a").touch()
    with pytest.raises(CorruptFolderError, match=message) as caught:
        verify_folder(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)


def test_a_listed_file_may_not_lead_out_of_its_folder(tmp_path):
    folder = tmp_path / "folder"
    with new_folder(folder) as work:
        (work / "a").write_text("inside", encoding="utf-8")
    (tmp_path / "b").write_text("inside", encoding="utf-8")
    (folder / "a").unlink()
    (folder / "a").symlink_to(tmp_path / "b")
    with pytest.raises(CorruptFolderError, match="leads out of its folder"):
        verify_folder(folder)


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
