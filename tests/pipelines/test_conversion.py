"""Conversion to other formats and back: equal outputs, equal files, and models that are refused."""

import json
import random
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers

from checkpoint import hf_models
from glassformer.checkpoint import OutputExistsError, load_model, save_model
from glassformer.checkpoint.gguf_export import pairs_from_halves, write_gguf
from glassformer.checkpoint.gguf_file import halves_from_pairs
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.models import build_model, preset
from glassformer.pipelines.agreement import verify
from glassformer.pipelines.classifier import Classifier
from glassformer.pipelines.conversion import convert
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.load import load
from glassformer.pipelines.tagger import Tagger
from glassformer.pipelines.translator import Translator
from glassformer.tasks.configs.small_models import small_decoder, small_encoder, small_encoder_decoder
from glassformer.text import Tokenizer, TokenizerConfig
from glassformer.text.tokenizer import END
from pipelines.tiny_pipelines import make


def by_our_own_reader(monkeypatch):
    """Verify with our own reader, even if another library is installed."""
    monkeypatch.setattr("glassformer.pipelines.agreement.is_installed", lambda name: False)


@pytest.mark.parametrize(
    ("out", "to", "numbers", "message"),
    [
        ("out", "banana", "f16", "to='banana': expected one of hf, safetensors, gguf, ct2, onnx$"),
        ("out", None, "f16", "to=None: expected one of hf, safetensors, gguf, ct2, onnx$"),
        ("out", ["hf"], "f16", r"to=\['hf'\]: expected one of hf"),
        ("hf", "out", "f16", r"to='out': expected .*; the order of the arguments is convert\(path, out, to\)$"),
        ("out", "models/mine", "f16", r"to='models/mine': .*; the order of the arguments is convert\(path, out, to\)$"),
        ("out", Path("mine"), "f16", r"to=.*Path\('mine'\): .*the order of the arguments is convert\(path, out, to\)$"),
        ("out", "gguf", "q4", "numbers='q4': expected one of f32, f16, q8_0$"),
        ("out", "hf", None, "numbers=None: expected one of f32, f16, q8_0$"),
    ],
)
def test_an_unknown_format_is_refused_before_the_model_is_read(tmp_path, monkeypatch, out, to, numbers, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        convert("missing-model", out, to, numbers=numbers)
    assert not [*tmp_path.iterdir()]


KINDS = ["gpt2", "llama", "t5-small", "bart-base", "marian", "bert-base", "albert-base"]


@pytest.mark.parametrize("name", KINDS)
def test_ours_to_hf_and_back(name, tmp_path):
    torch.manual_seed(0)
    save_model(tmp_path / "ours", build_model(preset(f"tiny-{name}")))
    model = convert(tmp_path / "ours", tmp_path / "hf", "hf")
    found = verify(tmp_path / "ours", model, tmp_path / "hf", "hf")
    assert (found.reference, found.tool) == ("Glassformer", "HF Transformers")
    assert found.largest_difference < 1e-5
    found.check(tmp_path / "hf")
    back = convert(tmp_path / "hf", tmp_path / "back", "safetensors")
    found = verify(tmp_path / "hf", back, tmp_path / "back", "safetensors")
    assert (found.reference, found.tool) == ("HF Transformers", "Glassformer")
    assert found.largest_difference < 1e-5
    for one, two in zip(model.parameters(), load_model(tmp_path / "back").parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("numbers", ["f32", "f16"])
def test_a_decoder_to_gguf_and_back(kind, numbers, tmp_path, monkeypatch):
    by_our_own_reader(monkeypatch)
    draw, class_name = hf_models.DECODERS[kind]
    config = draw(random.Random(5))
    config.sliding_window, config.use_sliding_window = None, False
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    config.attention_bias = config.mlp_bias = False
    config.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]}
    hf_models.make(config, class_name, 5).save_pretrained(tmp_path / "hf")
    model = convert(tmp_path / "hf", tmp_path / "model.gguf", "gguf", numbers=numbers)
    found = verify(tmp_path / "hf", model, tmp_path / "model.gguf", "gguf", numbers=numbers)
    assert found.largest_difference <= (0.0 if numbers == "f32" else 0.2)
    found.check(tmp_path / "model.gguf")
    again = load_model(tmp_path / "model.gguf")
    assert again.config.rope_theta == model.config.rope_theta
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=0.0 if numbers == "f32" else 2e-3, rtol=0)


@pytest.mark.parametrize("tie", ["output", "none"])
def test_the_scale_of_embeddings_survives_conversion(tie, tmp_path, monkeypatch):
    torch.manual_seed(0)
    save_model(tmp_path / "ours", build_model(preset("tiny-llama", scale_embeddings=True, tie=tie)))
    model = convert(tmp_path / "ours", tmp_path / "hf", "hf")
    assert model.config.scale_embeddings
    assert verify(tmp_path / "ours", model, tmp_path / "hf", "hf").largest_difference < 1e-5
    by_our_own_reader(monkeypatch)
    convert(tmp_path / "ours", tmp_path / "model.gguf", "gguf", numbers="f32")
    assert verify(tmp_path / "ours", model, tmp_path / "model.gguf", "gguf").largest_difference < 1e-5


def test_a_gguf_file_of_heads_of_any_size_is_verified_by_hf(tmp_path):
    """HF reads no size of heads from a file; for Qwen3, the family of our language models, it takes 128."""
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = build_model(preset("tiny-qwen3"))
    assert model.config.head_size != 128
    save_model(tmp_path / "ours", model)
    convert(tmp_path / "ours", tmp_path / "model.gguf", "gguf", numbers="f32")
    found = verify(tmp_path / "ours", model, tmp_path / "model.gguf", "gguf", numbers="f32")
    found.check(tmp_path / "model.gguf")


def test_rotary_rows_are_permuted_to_pairs_and_back():
    rows = np.arange(24.0, dtype=np.float32).reshape(12, 2)
    assert np.array_equal(halves_from_pairs(pairs_from_halves(rows, 2), 2), rows)


def test_a_q8_0_file_gives_nearly_the_same_logits(tmp_path, monkeypatch):
    by_our_own_reader(monkeypatch)
    torch.manual_seed(0)
    model = build_model(preset("tiny-llama", d_model=32, d_ff=64, n_heads=4, n_kv_heads=2)).eval()
    write_gguf(tmp_path / "model.gguf", model, numbers="q8_0")
    kinds = {tensor.tensor_type for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert gguf.GGMLQuantizationType.Q8_0 in kinds
    field = gguf.GGUFReader(tmp_path / "model.gguf").fields["tokenizer.ggml.model"]
    assert field.contents() == "none"  # llama.cpp asks for it
    found = verify(tmp_path, model, tmp_path / "model.gguf", "gguf", numbers="q8_0")
    assert 0 < found.largest_difference < 0.1
    found.check(tmp_path / "model.gguf")


def test_a_format_that_cannot_express_the_model_is_refused(tmp_path):
    save_model(tmp_path / "bert", build_model(preset("tiny-bert-base")))
    with pytest.raises(ValueError, match="expected a decoder, for a GGUF file"):
        convert(tmp_path / "bert", tmp_path / "model.gguf", "gguf")
    save_model(tmp_path / "gpt2", build_model(preset("tiny-gpt2")))
    with pytest.raises(UnsupportedModelError, match=r"gated=False .*norm='layer' .*--to hf or --to onnx$"):
        convert(tmp_path / "gpt2", tmp_path / "model.gguf", "gguf")
    assert not list(tmp_path.glob("*model.gguf*"))
    save_model(tmp_path / "alibi", build_model(preset("tiny-llama", positions="alibi", norm="layer")))
    with pytest.raises(UnsupportedModelError, match=r"positions='alibi' .* with --to onnx$"):
        convert(tmp_path / "alibi", tmp_path / "hf", "hf")


@pytest.mark.parametrize(
    ("to", "blocking"),
    [
        (
            "hf",
            r"closest, pegasus, cannot express qk_norm=True \(expected False\), gated=True \(expected False\)\.",
        ),
        ("ct2", r"CTranslate2 cannot express qk_norm=True \(expected False\)\."),
        ("gguf", "'encoder_decoder': expected a decoder, for a GGUF file"),
    ],
)
def test_a_refusal_names_all_settings_that_block_it_and_the_formats_that_work(to, blocking, tmp_path):
    config = small_encoder_decoder(d_model=16, d_ff=24, vocab_size=40, qk_norm=True, gated=True)
    save_model(tmp_path / "m", build_model(config))
    with pytest.raises(UnsupportedModelError, match=f"{blocking}.* can be written with --to onnx$"):
        convert(tmp_path / "m", tmp_path / "out", to)
    assert not (tmp_path / "out").exists()


TINY = {"d_model": 18, "n_heads": 3, "d_ff": 24, "max_len": 32}
ENCODER = {"vocab_size": 300, "head_transform": True}
DEFAULTS = {
    "translation": (small_encoder_decoder(n_encoder_layers=2, n_decoder_layers=1, **TINY), "pegasus"),
    "translation without ties": (small_encoder_decoder(n_decoder_layers=1, **TINY, tie="none"), "pegasus"),
    "translation with biases": (small_encoder_decoder(n_decoder_layers=1, **TINY, output_bias=True), "pegasus"),
    "the paper's": (preset("tiny-transformer-base"), "marian"),
    "language": (small_decoder(**{**TINY, "n_heads": 3, "n_decoder_layers": 2}), "qwen3"),
    "masking": (small_encoder(**TINY).with_head("language_model", scale_embeddings=True, **ENCODER), "megatron-bert"),
    "classes": (small_encoder(**TINY).with_head("sequence_class", n_labels=3, **ENCODER), "megatron-bert"),
    "tags": (small_encoder(**TINY).with_head("token_class", n_labels=3), "megatron-bert"),
    "spans": (small_encoder(**TINY).with_head("span"), "megatron-bert"),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_model_goes_to_hf_with_the_same_numbers_and_ids(name, tmp_path):
    config, family = DEFAULTS[name]
    texts = [" ".join(random.Random(index).choices("abcdefgh", k=9)) for index in range(50)]
    how = TokenizerConfig(prefix_space=config.kind != "decoder")
    tokenizer = Tokenizer.train(texts, 280, how)
    torch.manual_seed(0)
    model = build_model(replace(config, vocab_size=tokenizer.vocab_size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(tmp_path / "ours", model, {"tokenizer.json": tokenizer.to_json()})
    loaded = convert(tmp_path / "ours", tmp_path / "hf", "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text(encoding="utf-8"))["model_type"] == family
    found = verify(tmp_path / "ours", loaded, tmp_path / "hf", "hf")
    assert found.tool == "HF Transformers"
    found.check(tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    end = [] if config.kind == "decoder" else [END]
    for text in ["a b  c", "</s> a <pad>", " x", "é ß 日本", ""]:
        assert theirs(text)["input_ids"] == [*tokenizer.encode(text), *end]
        written = theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)
        assert written.strip() == text.strip()
        if config.kind == "encoder_decoder":
            assert written == tokenizer.decode(tokenizer.encode(text))  # no space before a whole text


@pytest.mark.parametrize("kind", [Translator, Classifier, Tagger, LanguageModel], ids=lambda kind: kind.task)
def test_our_own_format_keeps_the_task(kind, tmp_path):
    ours = make(kind)
    ours.save(tmp_path / "ours", "card")
    convert(tmp_path / "ours", tmp_path / "copy", "safetensors")
    copied = load(tmp_path / "copy")
    assert type(copied) is kind
    assert copied.run(["the cat sees"]) == ours.run(["the cat sees"])


def test_a_token_id_that_would_change_the_model_is_refused(tmp_path):
    # RoBERTa counts positions from pad_token_id + 1, and our padding is 0.
    for offset in (1, 2):
        shape = {"position_offset": offset, "token_types": 1, "head_transform": False, "head": "none", "tie": "none"}
        save_model(tmp_path / f"{offset}", build_model(preset("tiny-bert-base", **shape)))
    model = convert(tmp_path / "1", tmp_path / "hf-1", "hf")
    verify(tmp_path / "1", model, tmp_path / "hf-1", "hf").check(tmp_path / "hf-1")
    with pytest.raises(
        UnsupportedModelError, match=r"HF's roberta with pad_token_id=0.*position_offset=2 \(expected 1\)"
    ):
        convert(tmp_path / "2", tmp_path / "hf-2", "hf")
    assert not (tmp_path / "hf-2").exists()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("marian", {}),
        ("bart-base", {}),
        ("transformer-base", {"norm_placement": "pre", "tie": "none"}),
        ("transformer-base", {"gated": True, "activation": "silu", "norm": "rms"}),
        ("transformer-base", {"norm_placement": "pre", "positions": "rotary", "rope_theta": 100.0, "max_len": None}),
        ("transformer-base", {"norm_placement": "pre", "positions": "rotary", "n_kv_heads": 2}),
        ("transformer-base", {"n_kv_heads": 1}),
    ],
)
def test_an_encoder_decoder_to_ctranslate2(name, changes, tmp_path):
    pytest.importorskip("ctranslate2")
    texts = [" ".join(random.Random(index).choices("abcdefgh", k=9)) for index in range(50)]
    tokenizer = Tokenizer.train(texts, 280)
    torch.manual_seed(0)
    model = build_model(preset(f"tiny-{name}", vocab_size=tokenizer.vocab_size, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(tmp_path / "ours", model, {"tokenizer.json": tokenizer.to_json()})
    loaded = convert(tmp_path / "ours", tmp_path / "ct2", "ct2")
    found = verify(tmp_path / "ours", loaded, tmp_path / "ct2", "ct2")
    assert (found.reference, found.tool) == ("Glassformer", "CTranslate2")
    assert found.largest_difference < 1e-4
    assert found.same_tokens == 1.0
    found.check(tmp_path / "ct2")


def test_a_model_that_ctranslate2_cannot_express_is_refused(tmp_path):
    pytest.importorskip("ctranslate2")
    save_model(
        tmp_path / "t5", build_model(preset("tiny-t5-small")), {"tokenizer.json": Tokenizer.train(["a"], 280).to_json()}
    )
    with pytest.raises(UnsupportedModelError, match=r"cannot express attention_scale=1\.0 .*, positions='relative'"):
        convert(tmp_path / "t5", tmp_path / "ct2", "ct2")


@pytest.mark.parametrize("family", ["roberta", "t5", "llama"])
def test_hf_to_ours_and_back_is_lossless(family, tmp_path):
    if family in hf_models.ENCODERS:
        theirs = hf_models.make(hf_models.ENCODERS[family][0](random.Random(0)), "RobertaForMaskedLM", 0)
    else:
        draw, class_name = {**hf_models.DECODERS, **hf_models.PAIRS}[family]
        theirs = hf_models.make(draw(random.Random(0)), class_name, 0)
    theirs.save_pretrained(tmp_path / "hf")
    words = {word: index for index, word in enumerate(["</s>", "<pad>", "[UNK]", *(f"w{i}" for i in range(34))])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.save(str(tmp_path / "hf" / "tokenizer.json"))
    (tmp_path / "hf" / "tokenizer_config.json").write_text(
        '{"eos_token": "</s>", "pad_token": "<pad>"}', encoding="utf-8"
    )
    convert(tmp_path / "hf", tmp_path / "ours", "safetensors")
    model = convert(tmp_path / "ours", tmp_path / "again", "hf")
    assert verify(tmp_path / "ours", model, tmp_path / "again", "hf").largest_difference < 1e-5
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text(encoding="utf-8")) for name in ("hf", "again")
    )
    for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        assert after.get(key) == before.get(key), key
    one, two = load(tmp_path / "hf"), load(tmp_path / "ours")
    assert type(one) is type(two)
    assert one.run(["w1 w2 w3"]) == two.run(["w1 w2 w3"])


@pytest.mark.parametrize("to", ["hf", "safetensors", "gguf", pytest.param("onnx", marks=pytest.mark.full)])
def test_an_output_that_exists_is_replaced_only_when_asked_and_other_files_never(tmp_path, to):
    save_model(tmp_path / "m", build_model(preset("tiny-llama")))
    out = tmp_path / "out"
    convert(tmp_path / "m", out, to)
    with pytest.raises(OutputExistsError, match=r"^(?!.*this run).*--overwrite"):
        convert(tmp_path / "m", out, to)
    convert(tmp_path / "m", out, to, overwrite=True)
    mine = tmp_path / "thesis"
    if to == "gguf":
        mine.write_text("years of work", encoding="utf-8")
    else:
        mine.mkdir()
        (mine / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(OutputExistsError, match="never replaced"):
        convert(tmp_path / "m", mine, to, overwrite=True)
    assert (mine if to == "gguf" else mine / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_a_model_is_not_converted_onto_itself(tmp_path):
    save_model(tmp_path / "m", build_model(preset("tiny-llama")))
    with pytest.raises(ValueError, match="is the model itself"):
        convert(tmp_path / "m", tmp_path / "m", "hf", overwrite=True)
    load_model(tmp_path / "m")


@pytest.mark.parametrize("kind", [Classifier, Tagger])
def test_an_onnx_folder_lists_the_names_of_the_outputs(kind, tmp_path, monkeypatch):
    found = {}
    monkeypatch.setattr(
        "glassformer.pipelines.conversion.export_onnx", lambda model, out, texts, **_: found.update(texts)
    )
    tool = make(kind)
    tool.save(tmp_path / "m", "card")
    convert(tmp_path / "m", tmp_path / "onnx", "onnx")
    names = json.loads(found["labels.json"])
    assert len(names) == tool.model.config.n_labels
    assert names[: len(tool.labels)] == tool.labels or {"O", f"B-{tool.labels[0]}"} <= {*names}
    found.clear()
    make(Translator).save(tmp_path / "t", "card")
    convert(tmp_path / "t", tmp_path / "onnx", "onnx")
    assert found
    assert "labels.json" not in found
