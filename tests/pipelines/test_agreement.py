"""`convert --verify` compares with the source itself, and fails beyond its tolerance."""

import json
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from checkpoint import hf_models
from checkpoint.adapter_folders import write_adapter
from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.hf.folder import save_hf_folder
from glassformer.models import build_model, preset
from glassformer.pipelines.agreement import EXACT, ROUNDED, Agreement, DisagreementError, verify
from glassformer.pipelines.conversion import convert

LLAMA = preset("tiny-llama", d_model=32, d_ff=64, n_heads=4, n_kv_heads=2)


def hf_folder(family, folder):
    draw, class_name = {**hf_models.DECODERS, **hf_models.PAIRS}[family]
    config = draw(random.Random(5))
    hf_models.make(config, class_name, 5).save_pretrained(folder)
    return folder


def mistaken(model):
    """The same model with one number of its last norm or bias changed."""
    with torch.no_grad():
        list(model.parameters())[-1].view(-1)[0] += 1.0
    return model


@pytest.mark.parametrize("to", ["hf", "safetensors", "gguf"])
def test_verify_finds_a_wrong_weight_by_running_the_source(to, tmp_path, monkeypatch):
    save_hf_folder(tmp_path / "hf", build_model(LLAMA))
    monkeypatch.setattr(
        "glassformer.pipelines.conversion.load_model", lambda *args, **more: mistaken(load_model(*args))
    )
    out = tmp_path / "out.gguf"
    model = convert(tmp_path / "hf", out, to, numbers="f32")
    found = verify(tmp_path / "hf", model, out, to, numbers="f32")
    assert found.reference == "HF Transformers"
    with pytest.raises(DisagreementError, match="differs from its source"):
        found.check(out)


def test_verify_finds_a_wrong_weight_in_a_ctranslate2_model(tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    hf_folder("bart", tmp_path / "hf")
    words = {f"w{index}": index for index in range(hf_models.VOCAB)}
    tokenizer = {"model": {"type": "WordLevel", "unk_token": "w2", "vocab": words}}
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    model = convert(tmp_path / "hf", tmp_path / "good", "ct2")
    verify(tmp_path / "hf", model, tmp_path / "good", "ct2").check(tmp_path / "good")
    monkeypatch.setattr(
        "glassformer.pipelines.conversion.load_model", lambda *args, **more: mistaken(load_model(*args))
    )
    model = convert(tmp_path / "hf", tmp_path / "bad", "ct2")
    found = verify(tmp_path / "hf", model, tmp_path / "bad", "ct2")
    assert (found.reference, found.tool) == ("HF Transformers", "CTranslate2")
    with pytest.raises(DisagreementError, match="a logit differs by"):
        found.check(tmp_path / "bad")


@pytest.mark.parametrize(("numbers", "is_good"), [("f32", True), ("f16", True), ("q8_0", True), ("q8_0", False)])
def test_rounding_is_allowed_and_a_mistake_is_not(numbers, is_good, tmp_path, monkeypatch):
    monkeypatch.setattr("glassformer.pipelines.agreement.is_installed", lambda name: False)
    torch.manual_seed(0)
    model = build_model(LLAMA).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2) if parameter.dim() > 1 else parameter.normal_(1.0, 0.1)
    save_model(tmp_path / "ours", model)
    convert(tmp_path / "ours", tmp_path / "model.gguf", "gguf", numbers=numbers)
    source = model if is_good else replace_activation(model)
    found = verify(tmp_path / "ours", source, tmp_path / "model.gguf", "gguf", numbers=numbers)
    assert found.tolerance == (EXACT if numbers == "f32" else ROUNDED[numbers])
    if is_good:
        found.check(tmp_path / "model.gguf")
        return
    with pytest.raises(DisagreementError, match=r"divergence is .* nats, above 0\.01; .* of tokens are equal"):
        found.check(tmp_path / "model.gguf")


def replace_activation(model):
    """The same weights with another activation, as llama.cpp would run a model whose activation it does not know."""
    other = build_model(replace(model.config, activation="gelu")).eval()
    other.load_state_dict(model.state_dict())
    return other


def agreement(**changes):
    numbers = {"largest_difference": 1e-6, "scale": 5.0, "divergence": 1e-6, "same_tokens": 1.0}
    return Agreement(reference="one", tool="two", tolerance=EXACT, **numbers | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"largest_difference": 4e-4}, None),
        ({"largest_difference": 6e-4}, r"a logit differs by 6\.00e-04, above 5\.00e-04"),
        ({"largest_difference": float("nan")}, "a logit differs by nan"),
        ({"same_tokens": 0.417}, None),
        ({"same_tokens": 0.417, "tolerance": ROUNDED["f16"]}, r"41\.7% of tokens are equal, below 98%"),
        ({"divergence": float("nan"), "tolerance": ROUNDED["q8_0"]}, "the divergence is nan"),
    ],
)
def test_a_difference_beyond_the_tolerance_fails(changes, message, tmp_path):
    found = replace(agreement(), **changes)
    if message is None:
        found.check(tmp_path)
        return
    with pytest.raises(DisagreementError, match=message):
        found.check(tmp_path)


def test_llama_cpp_verifies_a_gguf_file_if_it_is_installed(tmp_path, monkeypatch):
    class Llama:
        """The part of llama.cpp's Python API that `verify` calls, implemented by our own GGUF reader."""

        def __init__(self, path, *, n_ctx, logits_all, verbose, type_k, type_v):
            assert logits_all
            self.model = load_model(path)

        def reset(self):
            self.scores = None

        def eval(self, tokens):
            assert self.scores is None
            self.scores = self.model(torch.tensor([tokens]))[0].numpy()

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama, GGML_TYPE_F32=0))
    monkeypatch.setattr("glassformer.pipelines.agreement.is_installed", lambda name: name == "llama_cpp")
    save_model(tmp_path / "ours", build_model(LLAMA))
    model = convert(tmp_path / "ours", tmp_path / "one.gguf", "gguf", numbers="f32")
    found = verify(tmp_path / "ours", model, tmp_path / "one.gguf", "gguf", numbers="f32")
    assert (found.reference, found.tool) == ("Glassformer", "llama.cpp")
    found.check(tmp_path / "one.gguf")
    model = convert(tmp_path / "one.gguf", tmp_path / "two", "safetensors")
    found = verify(tmp_path / "one.gguf", model, tmp_path / "two", "safetensors")
    assert (found.reference, found.tool) == ("llama.cpp", "Glassformer")
    found.check(tmp_path / "two")


def test_encoders_without_a_language_model_head_are_compared_by_their_outputs(tmp_path):
    hf_models.make(
        hf_models.ENCODERS["roberta"][0](random.Random(1)), "RobertaForSequenceClassification", 1
    ).save_pretrained(tmp_path / "hf")
    model = convert(tmp_path / "hf", tmp_path / "out", "hf")
    found = verify(tmp_path / "hf", model, tmp_path / "out", "hf")
    assert found.divergence is None
    assert found.largest_difference < 1e-6
    found.check(tmp_path / "out")


@pytest.mark.parametrize(("prefix", "head"), [("Electra", "ForPreTraining"), ("Bert", "ForPreTraining")])
def test_a_model_with_an_extra_head_is_verified_without_it(prefix, head, tmp_path):
    hf_models.small_bert(prefix, head).save_pretrained(tmp_path / "hf")
    model = convert(tmp_path / "hf", tmp_path / "out", "hf")
    found = verify(tmp_path / "hf", model, tmp_path / "out", "hf")
    assert (found.reference, found.tool) == ("HF Transformers", "HF Transformers")
    found.check(tmp_path / "out")


def test_a_merged_adapter_is_verified_against_our_model(tmp_path):
    hf_folder("llama", tmp_path / "base")
    weight = load_model(tmp_path / "base").decoder.layers[0].self_attn.q_proj.weight
    name = "model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": torch.randn(2, weight.shape[1]),
        f"{name}.lora_B.weight": torch.randn(weight.shape[0], 2),
    }
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    model = convert(tmp_path / "adapter", tmp_path / "out", "hf")
    found = verify(tmp_path / "adapter", model, tmp_path / "out", "hf")
    assert found.reference == "Glassformer"
    found.check(tmp_path / "out")
