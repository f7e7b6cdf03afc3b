"""`load`: the pipeline of each kind of folder, and the folders that are refused."""

import json
import random

import pytest
import torch

from checkpoint import hf_models, small_gguf
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.decoding import GenerationConfig
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.load import load
from pipelines.hf_folders import save_tokenizer


def test_a_decoder_without_a_language_model_head_is_refused(tmp_path):
    draw, _ = hf_models.DECODERS["llama"]
    hf_models.make(draw(random.Random(3)), "LlamaModel", 3).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="head='none', which generates no text"):
        load(tmp_path)


def test_pickles_are_refused_unless_asked_for(decoder):
    folder, theirs = decoder
    (folder / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(CorruptFolderError, match="is a pickle, which can run code"):
        load(folder)
    assert isinstance(load(folder, allow_pickle=True), Generator)


class Bomb:
    def __reduce__(self):
        return (open, ("exploded", "w"))


def test_code_in_a_pickle_is_not_run(decoder, monkeypatch):
    folder, _ = decoder
    monkeypatch.chdir(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"x": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(CorruptFolderError, match="cannot be read"):
        load(folder, allow_pickle=True)
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 3, None])
def test_an_index_cannot_name_a_file_outside_its_folder(decoder, name):
    folder, _ = decoder
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CorruptFolderError, match="expected a file name without a folder"):
        load(folder)


def test_a_link_out_of_the_folder_is_refused(decoder):
    folder, _ = decoder
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "outside.safetensors")
    with pytest.raises(CorruptFolderError, match="a link that leads out of its folder"):
        load(folder)


def test_a_missing_path_and_an_unknown_file_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such"):
        load(tmp_path / "nothing")
    (tmp_path / "text.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(ValueError, match="expected a model folder, a GGUF file, or"):
        load(tmp_path / "text.txt")


def test_a_gguf_file_stays_as_stored_unless_a_dtype_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = small_gguf.write(tmp_path / "m.gguf", kind=small_gguf.Kind.Q4_1)

    def kinds(**options):
        return {type(module) for module in load(path, **options).model.modules()} & {GroupwiseLinear, torch.nn.Linear}

    assert kinds() == {GroupwiseLinear}
    assert kinds(dtype="float32") == {torch.nn.Linear}
    assert kinds(dtype="bfloat16") == {torch.nn.Linear}
    assert kinds(quantize="int4") == {GroupwiseLinear}
    assert GroupwiseLinear not in kinds(quantize="int8")


def test_on_a_gpu_a_gguf_file_is_expanded(tmp_path, monkeypatch):
    path = small_gguf.write(tmp_path / "m.gguf", kind=small_gguf.Kind.Q8_0)
    monkeypatch.setattr("glassformer.pipelines.load.choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("glassformer.runtime.prepare_model.choose_device", lambda name: torch.device("cpu"))
    assert not any(isinstance(module, GroupwiseLinear) for module in load(path).model.modules())


def test_a_packed_gguf_file_generates_alone_what_it_generates_in_a_batch(tmp_path):
    model = load(small_gguf.write(tmp_path / "m.gguf", kind=small_gguf.Kind.Q4_1), device="cpu")
    texts = ["abc", "ab", "a longer text that is padded to another length", "x"]
    config = GenerationConfig(max_new_tokens=8)
    together = model.run(texts, config=config)
    assert [model.run([text], config=config)[0] for text in texts] == together
