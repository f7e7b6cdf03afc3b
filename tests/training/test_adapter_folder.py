"""Adapters in PEFT's format: PEFT computes the same logits, and they load back, merged or not, several at once."""

import peft
import pytest
import torch

import glassformer
from glassformer.checkpoint import load_model, save_model
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.runtime.prepare_model import prepare_model
from glassformer.training.adapter_folder import adapter_files, load_adapter, write_adapter
from glassformer.training.lora import adapted_layers, add_adapters, merge_adapters, use_adapters
from glassformer.training.train_config import TrainConfig
from tasks.pretrained_models import hf_pair_logits, save_decoder, save_seq2seq
from tasks.tiny_tasks import write_pairs

IDS = torch.tensor([[5, 7, 9, 30, 21]])


def adapted(folder, seed=0, **options):
    """Return the model of a folder with random adapters."""
    model = load_model(folder)
    add_adapters(model, TrainConfig(**{"lora_rank": 2, "lora_alpha": 3, "seed": seed, **options}))
    torch.manual_seed(seed)
    for layer in adapted_layers(model).values():
        torch.nn.init.normal_(layer.adapters["default"].up, std=0.3)
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS)


@pytest.mark.parametrize(("kind", "layers"), [("Llama", ()), ("GPT2", ()), ("GPT2", ("q_proj", "v_proj"))])
def test_peft_computes_the_same_logits(kind, layers, tmp_path):
    theirs = save_decoder(tmp_path / "base", kind)
    model = adapted(tmp_path / "base", lora_layers=layers)
    expected = logits(model)
    write_adapter(tmp_path / "a", adapter=adapter_files(model, tmp_path / "base", kind.lower()), card="An adapter.")
    with torch.no_grad():
        found = peft.PeftModel.from_pretrained(theirs, tmp_path / "a")(IDS).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (expected - logits(load_model(tmp_path / "base"))).abs().max() > 0.01
    apart = load_model(tmp_path / "base")
    load_adapter(apart, tmp_path / "a", name="x")
    for other in (apart, load_model(tmp_path / "a")):  # not merged, and merged while it is read
        torch.testing.assert_close(logits(other), expected, atol=1e-5, rtol=1e-5)
    merge_adapters(model)
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


def test_two_adapters_on_one_model(tmp_path):
    save_decoder(tmp_path / "base")
    models = [adapted(tmp_path / "base", seed) for seed in range(2)]
    for seed, model in enumerate(models):
        write_adapter(tmp_path / f"{seed}", adapter=adapter_files(model, tmp_path / "base"))
    both = load_model(tmp_path / "base")
    plain = logits(both)
    for seed in range(2):
        load_adapter(both, tmp_path / f"{seed}", name=f"{seed}")
    for seed, model in enumerate(models):
        use_adapters(both, {f"{seed}": 1.0})
        torch.testing.assert_close(logits(both), logits(model))
    use_adapters(both, {})
    torch.testing.assert_close(logits(both), plain)


def test_what_does_not_fit_is_refused(tmp_path):
    save_decoder(tmp_path / "base")
    save_decoder(tmp_path / "wide", hidden_size=32)
    save_decoder(tmp_path / "deep", num_hidden_layers=3)
    write_adapter(tmp_path / "a", adapter=adapter_files(adapted(tmp_path / "deep"), tmp_path / "deep"))
    with pytest.raises(UnsupportedModelError, match="which belongs to no linear layer of this model"):
        load_adapter(load_model(tmp_path / "base"), tmp_path / "a")
    write_adapter(tmp_path / "b", adapter=adapter_files(adapted(tmp_path / "wide"), tmp_path / "wide"))
    with pytest.raises(ValueError, match=r"the adapter's update of .* is \(32, 32\): expected \(16, 16\)"):
        load_adapter(load_model(tmp_path / "base"), tmp_path / "b")
    with pytest.raises(ValueError, match="the model has no adapter 'other'"):
        adapter_files(adapted(tmp_path / "base"), tmp_path / "base", name="other")


def test_a_refused_adapter_leaves_the_model_as_it_was(tmp_path):
    save_decoder(tmp_path / "base")
    save_decoder(tmp_path / "deep", num_hidden_layers=3)
    write_adapter(tmp_path / "a", adapter=adapter_files(adapted(tmp_path / "deep"), tmp_path / "deep"))
    model = load_model(tmp_path / "base")
    expected = logits(model)
    with pytest.raises(UnsupportedModelError, match="belongs to no linear layer"):  # its first layers would fit
        load_adapter(model, tmp_path / "a")
    assert not adapted_layers(model)
    assert torch.equal(logits(model), expected)


def test_quantized_matrices_take_no_adapter(tmp_path):
    save_decoder(tmp_path / "base")
    model = adapted(tmp_path / "base")
    with pytest.raises(ValueError, match=r"the model has adapters: merge them before, by merge_adapters"):
        save_model(tmp_path / "m", model)
    write_adapter(str(tmp_path / "a"), adapter=adapter_files(model, tmp_path / "base"))
    load_adapter(load_model(tmp_path / "base"), str(tmp_path / "a"))
    quantized = prepare_model(load_model(tmp_path / "base"), quantize="int4")
    with pytest.raises(UnsupportedModelError, match=r"are quantized: expected .* with dtype='float32'"):
        load_adapter(quantized, tmp_path / "a")


def test_training_saves_an_adapter_that_peft_loads(tmp_path):
    theirs = save_seq2seq(tmp_path / "base", "T5")
    write_pairs(tmp_path)
    files = {"source": tmp_path / "a.en", "target": tmp_path / "a.de", "start_from": tmp_path / "base"}
    options = {"updates": 4, "max_tokens": 256, "device": "cpu", "eval_every": 4, "lora_rank": 2, "lr": 0.05}
    glassformer.train("translation", out=tmp_path / "a", lora_save="adapter", lora_quantize="int8", **files, **options)
    assert {file.name for file in (tmp_path / "a").iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    tool = glassformer.load(tmp_path / "a")
    source, target = tool.source_tokenizer.encode("one two"), tool.target_tokenizer.encode("eins zwei")
    with torch.no_grad():
        own = tool.model(torch.tensor([source]), torch.tensor([[tool.begin, *target[:-1]]]))[0]
    found = hf_pair_logits(peft.PeftModel.from_pretrained(theirs, tmp_path / "a"), source, target)
    torch.testing.assert_close(found, own, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="lora_save='adapter' without adapters"):
        glassformer.train("translation", out=tmp_path / "b", lora_save="adapter", **files, updates=1)


def test_an_adapter_that_could_not_be_loaded_is_refused_before_training(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("one two three four five\n\n" * 200, encoding="utf-8")
    small = {"d_model": 16, "n_heads": 2, "vocab_size": 300, "context": 16, "max_tokens": 64, "device": "cpu"}
    glassformer.train("language", data=[text], out=tmp_path / "m", updates=2, **small)
    steps = []
    with pytest.raises(ValueError, match=r"m: expected a model in Hugging Face's format.*--to hf.*--lora-save merged"):
        glassformer.train(
            "language", data=[text], out=tmp_path / "t", start_from=tmp_path / "m", updates=2, device="cpu",
            lora_rank=2, lora_save="adapter", on_step=steps.append,
        )  # fmt: skip
    assert not steps
