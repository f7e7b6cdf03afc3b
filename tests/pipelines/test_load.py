"""`load`: the pipeline of each kind of folder, and the folders that are refused."""

import json
import random

import pytest
import torch

from checkpoint import hf_models, small_gguf
from checkpoint.adapter_folders import RANK, write_adapter
from checkpoint.cached_repositories import put_in_cache
from glassformer.checkpoint import load_model
from glassformer.checkpoint.safe_files import CorruptFolderError
from glassformer.cli.info import describe
from glassformer.decoding import GenerationConfig
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.load import load
from glassformer.pipelines.translator import Translator
from glassformer.runtime.choose_runner import situation_of
from glassformer.runtime.packed_model import has_fused_storage
from glassformer.runtime.prepare_model import prepare_model
from pipelines.hf_folders import save_tokenizer
from pipelines.tiny_pipelines import make


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
    monkeypatch.setattr("glassformer.runtime.prepare_model.choose_device", lambda name: torch.device("meta"))
    model = load(path, device="meta").model
    assert not any(isinstance(module, GroupwiseLinear) for module in model.modules())


def test_a_packed_gguf_file_generates_alone_what_it_generates_in_a_batch(tmp_path):
    model = load(small_gguf.write(tmp_path / "m.gguf", kind=small_gguf.Kind.Q4_1), device="cpu")
    texts = ["abc", "ab", "a longer text that is padded to another length", "x"]
    config = GenerationConfig(max_new_tokens=8)
    together = model.run(texts, config=config)
    assert [model.run([text], config=config)[0] for text in texts] == together


def test_the_size_of_batches_and_truncation_are_settings_of_the_pipeline(tmp_path):
    make(Translator).save(tmp_path / "m", "card")
    tool = load(tmp_path / "m")
    assert (tool.batch_tokens, tool.truncate) == (None, False)
    tool = load(tmp_path / "m", batch_tokens=100, truncate=True)
    assert (tool.batch_tokens, tool.truncate) == (100, True)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"batch_tokens={wrong}: expected a whole number of at least 1"):
            load(tmp_path / "m", batch_tokens=wrong)


@pytest.mark.parametrize("kind", [Translator, LanguageModel, Classifier])
def test_int8_while_loading_is_int8_after_loading(kind, tmp_path):
    made = make(kind)
    made.save(tmp_path / "model", "A card.")
    loaded, expected = load(tmp_path / "model", quantize="int8").model, prepare_model(made.model, quantize="int8")
    assert [type(module) for module in loaded.modules()] == [type(module) for module in expected.modules()]
    assert not any(type(module) is torch.nn.Linear for module in loaded.modules())
    tokens = torch.arange(12, 20)[None]
    inputs = (tokens, tokens) if made.model.kind == "encoder_decoder" else (tokens,)
    with torch.inference_mode():
        assert torch.equal(loaded(*inputs), expected(*inputs))


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_converted_encoder_is_quantized_while_it_is_loaded(quantize, tmp_path):
    config = hf_models.ENCODERS["bert"][0](random.Random(3))
    hf_models.make(config, "BertForMaskedLM", 3).save_pretrained(tmp_path / "hf")
    save_tokenizer(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "own", "safetensors")
    one, two = (load(tmp_path / name, quantize=quantize).embed(["a b", "c"]) for name in ("hf", "own"))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


def test_quantize_none_is_the_default(tmp_path):
    make(Classifier).save(tmp_path / "m", "A card.")
    assert load(tmp_path / "m", quantize=None).run(["a b"]) == load(tmp_path / "m").run(["a b"])


def test_compiling_is_for_models_that_generate(tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.runtime.choose_runner.check_cpp_compiler", lambda: None)
    make(LanguageModel).save(tmp_path / "writer", "A card.")
    make(Classifier).save(tmp_path / "reader", "A card.")
    assert situation_of(load(tmp_path / "writer", compile="on").model).records == "compiled"
    assert situation_of(load(tmp_path / "writer", compile="off").model).records == ""
    with pytest.raises(ValueError, match="holds an encoder, which makes no decoding steps"):
        load(tmp_path / "reader", compile="on")


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("kind", [Translator, LanguageModel])
def test_a_loaded_model_is_saved_as_it_was(kind, fuses, tmp_path, monkeypatch):
    make(kind).save(tmp_path / "one", "A card.")
    monkeypatch.setattr("glassformer.runtime.prepare_model.Preparation.fuses", fuses)  # as on a GPU
    loaded = load(tmp_path / "one", device="cpu")
    assert has_fused_storage(loaded.model) == fuses
    loaded.run(["it is red"])
    loaded.save(tmp_path / "two", "A card.")
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_quantized_model_is_not_saved(tmp_path):
    make(Translator).save(tmp_path / "one", "A card.")
    loaded = load(tmp_path / "one", quantize="int8")
    with pytest.raises(ValueError, match="it is packed or quantized for inference, and cannot be saved"):
        loaded.save(tmp_path / "two", "A card.")
    assert not (tmp_path / "two").exists()


def small_generator(folder):
    """Write a random Llama of HF with a tokenizer."""
    draw, class_name = hf_models.DECODERS["llama"]
    hf_models.make(draw(random.Random(1)), class_name, 1).save_pretrained(folder)
    save_tokenizer(folder)


def test_an_adapter_uses_the_tokenizer_of_its_base_model(tmp_path):
    small_generator(tmp_path / "base")
    plain, base = load(tmp_path / "base"), load_model(tmp_path / "base")
    weight = base.decoder.layers[0].self_attn.q_proj.weight
    name = "model.layers.0.self_attn.q_proj"
    torch.manual_seed(0)
    down, up = torch.randn(RANK, weight.shape[1]), torch.randn(weight.shape[0], RANK)
    write_adapter(tmp_path / "adapter", tmp_path / "base", {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up})
    adapted = load(tmp_path / "adapter")
    assert adapted.tokenizer.encode("the cat") == plain.tokenizer.encode("the cat")
    with torch.no_grad():
        weight += 2.0 * (up @ down)
    tokens = torch.tensor([adapted.tokenizer.encode("the cat sat on the mat")])
    with torch.no_grad():
        torch.testing.assert_close(adapted.model(tokens), base(tokens), atol=1e-5, rtol=0)
    about = describe(tmp_path / "adapter")
    assert (about["adapter_of"], about["tokenizers"]["text"]["kind"]) == (str(tmp_path / "base"), "WordLevel")


def test_a_model_is_loaded_from_the_download_cache_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    small_generator(tmp_path / "files")
    put_in_cache(tmp_path / "files", tmp_path / "hub", "org/name")
    assert load("org/name").run("the cat") == load(tmp_path / "files").run("the cat")
    with pytest.raises(FileNotFoundError, match="hf download org/other"):
        load("org/other")
