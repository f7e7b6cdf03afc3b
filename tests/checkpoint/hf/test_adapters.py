"""LoRA adapters in PEFT's format give the outputs of the base model with the same update of its weights."""

import copy
import math

import pytest
import torch

from checkpoint.adapter_folders import RANK, write_adapter
from checkpoint.hf_comparison import make, open_theirs, same_numbers
from checkpoint.hf_models import small_bert
from glassformer.checkpoint import CorruptFolderError, load_model
from glassformer.checkpoint.hf.folder import is_hf_folder
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.pipelines.conversion import convert


def lora(theirs, modules, *, scale, transposed=False):
    """Return random LoRA matrices for these modules, and a copy of the model with their update added."""
    torch.manual_seed(1)
    tensors, changed = {}, copy.deepcopy(theirs)
    for name in modules:
        weight = changed.get_submodule(name).weight
        n_out, n_in = weight.shape[::-1] if transposed else weight.shape
        down, up = torch.randn(RANK, n_in), torch.randn(n_out, RANK)
        tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        delta = scale * (up @ down)
        weight.data += delta.T if transposed else delta
    return tensors, changed


def llama_with_pad():
    theirs = make("llama", 2)
    theirs.config.pad_token_id = 1
    return theirs


LLAMA_MODULES = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"]


@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 3, "down_proj": 3.0}}])
def test_a_decoder_with_an_adapter(settings, tmp_path):
    theirs = llama_with_pad()
    theirs.save_pretrained(tmp_path / "base")
    scale = {"use_rslora": 6 / math.sqrt(RANK), "alpha_pattern": 1.0}.get(next(iter(settings), ""), 2.0)
    tensors, changed = lora(theirs, LLAMA_MODULES, scale=scale)
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors, **settings)
    assert is_hf_folder(tmp_path / "adapter")
    assert same_numbers(load_model(tmp_path / "adapter"), changed, 0)


def test_an_adapter_over_gpt2s_transposed_matrices_is_merged_by_convert(tmp_path):
    theirs = make("gpt2", 3)
    theirs.config.pad_token_id = 1
    theirs.save_pretrained(tmp_path / "base")
    modules = ["transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj"]  # the second is square
    tensors, changed = lora(theirs, modules, scale=2.0, transposed=True)
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors, fan_in_fan_out=True)
    ours = convert(tmp_path / "adapter", tmp_path / "merged", "hf")
    assert same_numbers(ours, changed, 0)
    merged, _ = open_theirs(tmp_path / "merged", "GPT2LMHeadModel")
    merged.config.pad_token_id = 1
    assert same_numbers(ours, merged, 0)


def test_a_magnitude_sets_the_length_of_each_output(tmp_path):
    theirs = llama_with_pad()
    theirs.save_pretrained(tmp_path / "base")
    tensors, changed = lora(theirs, LLAMA_MODULES[:1], scale=2.0)
    weight = changed.get_submodule(LLAMA_MODULES[0]).weight
    magnitude = torch.rand(weight.shape[0]) + 1
    weight.data *= (magnitude / weight.data.norm(dim=1))[:, None]
    tensors[f"{LLAMA_MODULES[0]}.lora_magnitude_vector"] = magnitude
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors, use_dora=True)
    assert same_numbers(load_model(tmp_path / "adapter"), changed, 0)


@pytest.mark.parametrize("base_head", ["Model", "ForMaskedLM"])
def test_an_adapter_brings_its_own_classification_head(base_head, tmp_path):
    theirs = small_bert("Bert", "ForSequenceClassification", num_labels=3)
    base = small_bert("Bert", base_head)
    body = base if base_head == "Model" else base.bert
    body.load_state_dict(theirs.bert.state_dict(), strict=False)
    base.save_pretrained(tmp_path / "base")
    tensors, changed = lora(theirs, ["bert.encoder.layer.1.attention.self.query"], scale=2.0)
    own = ("classifier.weight", "classifier.bias", "bert.pooler.dense.weight", "bert.pooler.dense.bias")
    tensors |= {name: theirs.state_dict()[name] for name in own[: 2 if base_head == "Model" else 4]}
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors, task_type="SEQ_CLS")
    assert same_numbers(load_model(tmp_path / "adapter"), changed, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa', which also changes the base model"),
        ({"lora_bias": True}, "lora_bias=True"),
        ({"peft_type": ["LORA"]}, r"peft_type=\['LORA'\]"),
        ({"alpha_pattern": [1]}, "expected a table"),
        ({"alpha_pattern": {"(a+)+b": 3}}, r"alpha_pattern '\(a\+\)\+b'"),
    ],
)
def test_other_adapters_are_refused_by_name(settings, message, tmp_path):
    theirs = llama_with_pad()
    theirs.save_pretrained(tmp_path / "base")
    tensors, _ = lora(theirs, LLAMA_MODULES, scale=2.0)
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors, **settings)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(tmp_path / "adapter")


def test_tensors_that_do_not_fit_the_base_model_are_refused(tmp_path):
    theirs = llama_with_pad()
    theirs.save_pretrained(tmp_path / "base")
    both, _ = lora(theirs, LLAMA_MODULES[:1], scale=2.0)
    one = dict([next(iter(both.items()))])
    wide = {name: torch.ones(RANK, 5) if "lora_A" in name else value for name, value in both.items()}
    for number, (tensors, message) in enumerate(
        [
            (one, "only one of the two matrices"),
            ({"model.nowhere.lora_A.weight": torch.ones(RANK, 2)}, "which the base model does not have"),
            ({"model.layers.0.lora_X": torch.ones(2)}, "lora_X, which is not supported"),
            (wide, "expected"),
            ({f"{LLAMA_MODULES[0]}.lora_A.weight": torch.tensor(1.0)}, "expected a matrix"),
            ({f"{LLAMA_MODULES[0]}.lora_A.weight": torch.ones(0, 5)}, "expected a matrix"),
            ({**both, f"{LLAMA_MODULES[0]}.lora_magnitude_vector": torch.ones(2)}, "2 magnitudes"),
        ]
    ):
        write_adapter(tmp_path / str(number), tmp_path / "base", tensors)
        with pytest.raises(ValueError, match=message):
            load_model(tmp_path / str(number))


def test_a_missing_base_model_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    write_adapter(tmp_path / "adapter", "someone/base", {"a.lora_A.weight": torch.ones(1, 1)})
    with pytest.raises(FileNotFoundError, match="hf download someone/base"):
        load_model(tmp_path / "adapter")


def test_a_pickled_adapter_is_opened_only_when_allowed(tmp_path):
    theirs = llama_with_pad()
    theirs.save_pretrained(tmp_path / "base")
    tensors, changed = lora(theirs, LLAMA_MODULES, scale=2.0)
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    torch.save(named, tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(CorruptFolderError, match=r"expected adapter_model\.safetensors; allow_pickle"):
        load_model(tmp_path / "adapter")
    assert same_numbers(load_model(tmp_path / "adapter", allow_pickle=True), changed, 0)


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_adapter_of_the_embeddings_needs_an_output_of_its_own(is_tied, tmp_path):
    theirs = small_bert("Bert", "ForMaskedLM", tie_word_embeddings=is_tied)
    theirs.save_pretrained(tmp_path / "base")
    name, changed = "bert.embeddings.word_embeddings", copy.deepcopy(theirs)
    weight = changed.get_submodule(name).weight
    torch.manual_seed(2)
    down, up = torch.randn(RANK, weight.shape[0]), torch.randn(weight.shape[1], RANK)
    weight.data += 2.0 * (up @ down).T
    tensors = {f"{name}.lora_embedding_A": down, f"{name}.lora_embedding_B": up}
    write_adapter(tmp_path / "adapter", tmp_path / "base", tensors)
    if is_tied:
        with pytest.raises(UnsupportedModelError, match=r"word_embeddings\.weight, which the base model ties"):
            load_model(tmp_path / "adapter")
    else:
        assert same_numbers(load_model(tmp_path / "adapter"), changed, 0)
