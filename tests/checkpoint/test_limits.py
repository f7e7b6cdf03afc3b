"""An export format stores every config field, or refuses the values that its runtime does not support."""

from dataclasses import fields, replace

import pytest
import torch

from glassformer.checkpoint import ct2_export as ct2_out
from glassformer.checkpoint import gguf_export as gguf_out
from glassformer.checkpoint.ct2_export import Vocabulary, export_ct2
from glassformer.checkpoint.gguf_export import write_gguf
from glassformer.checkpoint.hf.values import UnsupportedModelError
from glassformer.checkpoint.limits import POSITION_FIELDS, TRAINING_FIELDS
from glassformer.models import ModelConfig, build_model, preset
from glassformer.text import Tokenizer, TokenizerConfig

LLAMA = preset("tiny-llama")
QWEN2 = replace(LLAMA, qkv_bias=True)
QWEN3 = replace(LLAMA, qk_norm=True)
PAPER = preset("tiny-transformer-base")


@pytest.mark.parametrize("limits", [*gguf_out.LIMITS.values(), ct2_out.LIMITS], ids=lambda limits: limits.format)
def test_a_format_classifies_every_config_field(limits):
    other = {key for kind, keys in POSITION_FIELDS.items() if kind not in limits.required["positions"] for key in keys}
    assert not limits.written & set(limits.required)
    every = {field.name for field in fields(ModelConfig)}
    assert limits.written | set(limits.required) | TRAINING_FIELDS | other == every


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (LLAMA, {"activation": "gelu"}, "'llama' cannot express activation='gelu' .expected 'silu'"),
        (LLAMA, {"activation": "relu"}, "'llama' cannot express activation='relu'"),
        (LLAMA, {"sliding_window": 3}, "'llama' cannot express sliding_window=3 .expected None"),
        (QWEN2, {"sliding_window": 3}, "'qwen2' cannot express sliding_window=3"),
        (QWEN3, {"sliding_window": 3}, "'qwen3' cannot express sliding_window=3"),
        (QWEN2, {"activation": "gelu_tanh"}, "'qwen2' cannot express activation='gelu_tanh'"),
        (QWEN2, {"head_dim": 6}, "'llama' cannot express qkv_bias=True .expected False"),
        (
            QWEN2,
            {"out_bias": True, "gated": False},
            "'llama' cannot express gated=False .expected True.$",
        ),
        (QWEN3, {"qkv_bias": True, "out_bias": True}, "'llama' cannot express qk_norm=True .expected False"),
        (QWEN3, {"qkv_bias": True, "norm": "layer"}, "'qwen2' cannot express qk_norm=True .*, norm='layer'"),
        (LLAMA, {"output_bias": True}, "output_bias=True"),
        (LLAMA, {"attention_scale": 0.5}, None),
        (LLAMA, {"attention_scale": 1.0}, "attention_scale=1.0"),
        (LLAMA, {"norm": "layer"}, "llama"),
        (LLAMA, {"positions": "learned"}, "positions='learned' .expected 'rotary'"),
        (LLAMA, {"gated": False}, "gated=False"),
        (LLAMA, {"max_len": None}, "max_len=None"),
        (LLAMA, {"n_experts": 4}, "'llama' cannot express n_experts=4 .expected 0"),
        (LLAMA, {"share_layers": True}, "share_layers=True"),
        (LLAMA, {"qkv_bias": True, "out_bias": True, "ffn_bias": True, "head_dim": 6, "scale_embeddings": True}, None),
        (QWEN3, {"head_dim": 6}, None),
    ],
)
def test_settings_that_llama_cpp_does_not_support_are_refused(base, changes, message, tmp_path):
    model = build_model(replace(base, **changes))
    if message is None:
        write_gguf(tmp_path / "model.gguf", model)
        return
    with pytest.raises(UnsupportedModelError, match=message):
        write_gguf(tmp_path / "model.gguf", model)
    assert not list(tmp_path.iterdir())


WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{index}" for index in range(36))]
VOCABULARY = Vocabulary(source=WORDS, target=WORDS, begin="<s>", end="</s>", unknown="<unk>")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "alibi"}, "positions='alibi' .expected 'sinusoidal' or 'learned' or 'rotary'"),
        ({"norm": "mean_std"}, "norm='mean_std'"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"share_layers": True}, "share_layers=True"),
        ({"sliding_window": 3}, "sliding_window=3"),
        ({"head_dim": 6}, "head_dim=6"),
        ({"attention_scale": 1.0}, "attention_scale=1.0"),
        ({"scale_by_depth": True}, "scale_by_depth=True"),
        ({"embedding_width": 16}, "embedding_width=16"),
        ({"final_norm": True}, "final_norm=True"),
        ({"head_transform": True}, "head_transform=True"),
        ({"qk_norm": True, "head_dim": 6, "final_norm": True}, "qk_norm=True .*, head_dim=6 .*, final_norm=True"),
    ],
)
def test_settings_that_ctranslate2_does_not_support_are_refused(changes, message, tmp_path):
    with pytest.raises(UnsupportedModelError, match=message):
        export_ct2(build_model(replace(PAPER, **changes)), tmp_path / "ct2", VOCABULARY)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"prefix_space": False}, ""),
        ({"prefix_space": True}, "a tokenizer with prefix_space=True"),
        ({"prefix_space": False, "lowercase": True}, "a tokenizer with lowercase=True"),
        ({"lowercase": True}, "a tokenizer with lowercase=True.*a tokenizer with prefix_space=True"),
        ({"kind": "unigram"}, "a tokenizer of type 'Unigram' .expected 'BPE'"),
    ],
)
def test_a_tokenizer_that_llama_cpp_has_no_rule_for_is_refused(settings, refusal, tmp_path):
    texts = ["the cat sat on the mat", "a dog sat"]
    tokenizer = Tokenizer.train(texts, 280, TokenizerConfig(**settings))
    torch.manual_seed(0)
    model = build_model(replace(LLAMA, vocab_size=tokenizer.vocab_size))
    if not refusal:
        write_gguf(tmp_path / "model.gguf", model, tokenizer_json=tokenizer.to_json())
        return
    with pytest.raises(UnsupportedModelError, match=refusal):
        write_gguf(tmp_path / "model.gguf", model, tokenizer_json=tokenizer.to_json())
    assert not list(tmp_path.iterdir())
