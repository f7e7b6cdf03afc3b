"""GGUF files: configs, tensors, tokenizers, and refused files."""

import json
import random
import sys
import time

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from checkpoint.small_gguf import (
    HEADS,
    INNER,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDTH,
    Kind,
    layer_shapes,
    random_tensors,
    shapes,
    write,
)
from glassformer.checkpoint.gguf_file import halves_from_pairs, read_gguf


def rotary_scores(q, k, *, pairs):
    """Return attention scores after RoPE, which rotates neighboring channels (`pairs`) or the two halves of a head."""
    positions, half = np.arange(q.shape[0]), q.shape[-1] // 2
    angles = positions[:, None, None] * 10000.0 ** (-np.arange(half) / half)

    def turned(x):
        first, second = (x[..., ::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)

    return np.einsum("thd,shd->hts", turned(q), turned(k))


def test_header_becomes_an_hf_config(tmp_path):
    assert read_gguf(write(tmp_path / "model.gguf")).config == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,  # the short decimal, not its float32 value
        "rope_theta": 50000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 258,
        "eos_token_id": 259,
        "attention_bias": False,
        "mlp_bias": False,
    }


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    # Q4_0 has one step less on the side of the smaller extreme.
    [(Kind.F32, 0), (Kind.F16, 2e-3), (Kind.BF16, 2e-2), (Kind.Q8_0, 2e-2), (Kind.Q4_1, 0.25), (Kind.Q4_0, 0.55)],
)
def test_tensors_come_back_as_they_are_stored(tmp_path, kind, tolerance):
    tensors = random_tensors()
    found = read_gguf(write(tmp_path / "model.gguf", tensors=tensors, kind=kind)).tensors
    assert len(list(found.keys())) == len(tensors)
    for name in found.keys():  # noqa: SIM118
        assert found[name].dtype == torch.float32
        assert found[name].shape == found.shape(name)
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
        "model.layers.1.mlp.gate_proj.weight": "blk.1.ffn_gate.weight",
        "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }
    for name, stored in pairs.items():
        np.testing.assert_allclose(found[name].numpy(), tensors[stored], atol=tolerance)


@pytest.mark.parametrize("kind", [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS])
def test_quantizations_with_blocks_of_256_are_read(tmp_path, kind):
    wide = {"ffn_gate.weight": (256, WIDTH), "ffn_up.weight": (256, WIDTH), "ffn_down.weight": (WIDTH, 256)}
    blocks = np.random.default_rng(2).integers(0, 60, (WIDTH, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    raw = {"blk.0.ffn_down.weight": (blocks, kind)}
    path = write(tmp_path / "model.gguf", tensors=random_tensors(shapes(wide)), raw=raw, feed_forward_length=256)
    values = read_gguf(path).tensors["model.layers.0.mlp.down_proj.weight"]
    assert values.numpy().tolist() == gguf.dequantize(blocks, kind).tolist()
    assert values.std() > 0


def test_tensors_that_are_no_weights_are_refused(tmp_path):
    raw = {"output_norm.weight": (np.ones(WIDTH, np.int32), Kind.I32)}
    with pytest.raises(ValueError, match="tensors in I32: expected floating point"):
        read_gguf(write(tmp_path / "model.gguf", raw=raw))


def test_a_tensor_is_a_copy_that_may_be_trained(tmp_path):
    found = read_gguf(write(tmp_path / "model.gguf")).tensors
    before = found["model.norm.weight"].clone()
    found["model.norm.weight"].zero_()
    assert torch.equal(found["model.norm.weight"], before)


def test_reordered_rows_of_q_and_k_give_the_same_scores(tmp_path):
    tensors = random_tensors()
    found = read_gguf(write(tmp_path / "model.gguf", tensors=tensors)).tensors
    x = np.random.default_rng(1).normal(size=(7, WIDTH))

    def heads(weight, count):
        return np.repeat((x @ weight.T).reshape(7, count, -1), HEADS // count, axis=1)

    stored = rotary_scores(
        heads(tensors["blk.0.attn_q.weight"], HEADS), heads(tensors["blk.0.attn_k.weight"], KV_HEADS), pairs=True
    )
    q, k = (found[f"model.layers.0.self_attn.{part}_proj.weight"].numpy() for part in "qk")
    np.testing.assert_allclose(
        rotary_scores(heads(q, HEADS), heads(k, KV_HEADS), pairs=False), stored, rtol=1e-9, atol=1e-9
    )


def test_halves_from_pairs_by_hand():
    rows = np.arange(8, dtype=np.float32)
    assert halves_from_pairs(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_llama_may_have_biases_and_an_untied_output(tmp_path):
    biases = {f"{name}.bias": layer_shapes()[f"{name}.weight"][:1] for name in ("attn_q", "attn_k", "attn_v")}
    biases |= {
        "attn_output.bias": (WIDTH,),
        "ffn_gate.bias": (INNER,),
        "ffn_up.bias": (INNER,),
        "ffn_down.bias": (WIDTH,),
    }
    tensors = random_tensors(shapes(biases) | {"output.weight": (VOCAB, WIDTH)})
    model = read_gguf(write(tmp_path / "model.gguf", tensors=tensors))
    assert model.config["attention_bias"]
    assert model.config["mlp_bias"]
    assert not model.config["tie_word_embeddings"]
    assert model.tensors["lm_head.weight"].numpy().tolist() == tensors["output.weight"].tolist()
    bias = model.tensors["model.layers.1.self_attn.k_proj.bias"].numpy()
    assert bias.tolist() == halves_from_pairs(tensors["blk.1.attn_k.bias"], KV_HEADS).tolist()


@pytest.mark.parametrize(
    ("architecture", "config_class", "model_class"),
    [("qwen2", Qwen2Config, Qwen2ForCausalLM), ("qwen3", Qwen3Config, Qwen3ForCausalLM)],
)
def test_qwen_loads_into_hfs_own_model_with_rows_as_stored(tmp_path, architecture, config_class, model_class):
    extra = {"attn_q.bias": (HEADS * 16,), "attn_k.bias": (KV_HEADS * 16,), "attn_v.bias": (KV_HEADS * 16,)}
    head_dim = 16
    if architecture == "qwen3":
        head_dim, extra = 24, {"attn_q_norm.weight": (24,), "attn_k_norm.weight": (24,)}
    tensors = random_tensors(shapes(extra, head_dim=head_dim))
    lengths = {"attention.key_length": head_dim, "attention.value_length": head_dim, "rope.dimension_count": head_dim}
    model = read_gguf(write(tmp_path / "model.gguf", architecture, tensors, **lengths))
    assert model.config.get("head_dim") == (24 if architecture == "qwen3" else None)
    theirs = model_class(config_class(**model.config))
    state = {name: model.tensors[name] for name in model.tensors.keys()}  # noqa: SIM118
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied
    assert state["model.layers.0.self_attn.q_proj.weight"].tolist() == tensors["blk.0.attn_q.weight"].tolist()


def test_the_stored_tokenizer_is_read(tmp_path):
    model = read_gguf(write(tmp_path / "model.gguf"))
    tokenizer = tokenizers.Tokenizer.from_str(model.tokenizer_json)
    assert tokenizer.encode("abcab<|end|>").tokens == ["abc", "ab", "<|end|>"]
    assert model.tokenizer_config["eos_token"] == "<|end|>"
    assert model.tokenizer_config["chat_template"] == "{{ messages }}"
    bare = read_gguf(write(tmp_path / "bare.gguf", tokenizer=False))
    assert bare.tokenizer_json is None
    assert bare.config["bos_token_id"] is None


def test_the_tensors_keep_no_list_of_all_tokens(tmp_path):
    opened = read_gguf(write(tmp_path / "model.gguf"))
    kept = opened.tensors._header.metadata
    assert opened.tokenizer_json
    assert kept["general.architecture"] == "llama"
    assert not [key for key, value in kept.items() if isinstance(value, list)]


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"pip install 'glassformer\[gguf\]'"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "mamba"}, "general.architecture='mamba': expected one of llama, qwen2, qwen3"),
        ({"rope.scaling.type": "longrope"}, "rope.scaling.type='longrope' with a factor of 1: expected 'none'"),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, "type='none' with a factor of 2: expected 'none'"),
        ({"rope.scaling.factor": float("nan")}, "rope.scaling.factor=nan: expected a positive number"),
        ({"expert_count": 8}, "llama.expert_count=8: expected a model without experts"),
        ({"attention.sliding_window": 64}, "expected a model without a sliding window"),
        ({"rope.dimension_count": 8}, "llama.rope.dimension_count=8: expected 16, the size of a head"),
        ({"attention.key_length": 17}, "an even size"),
        ({"attention.head_count_kv": 3}, "and 3 to divide them"),
        ({"attention.head_count": [4, 4]}, r"llama.attention.head_count=\[4, 4\]: expected a whole number"),
        ({"block_count": 2**31}, "llama.block_count=2147483648: expected a whole number from 1 to 20"),
        ({"block_count": 3}, "there is no tensor blk.2"),
        ({"block_count": 1}, "blk.1.attn_k.weight.*: expected no such tensor in a model of llama"),
        ({"context_length": None}, "llama.context_length=None: expected a whole number"),
        ({"embedding_length": 128}, r"token_embd.weight has the shape \(260, 64\): expected \(260, 128\)"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "rms_epsilon=nan: expected a positive number"),
        ({"tensors": {}}, "there is no table token_embd.weight"),
        ({"tensors": random_tensors(shapes() | {"rope_freqs.weight": (8,)})}, "expected finite numbers above 0"),
        (
            {"tensors": random_tensors(shapes() | {"rope_freqs.weight": (7,)})},
            r"\(7,\) in F32: expected \(8,",
        ),
        ({"tensors": random_tensors(shapes() | {"token_embd.weight": (259, WIDTH)})}, "expected an id below 259"),
        (
            {"tensors": random_tensors(shapes() | {"token_embd.weight": (259, WIDTH)}), "ids": False},
            "260 tokens: expected at most 259, the rows of token_embd.weight",
        ),
    ],
)
def test_unsupported_or_mismatched_settings_are_named(tmp_path, changes, message):
    path = write(tmp_path / "model.gguf", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)


def test_mutated_files_load_or_are_refused_quickly(tmp_path):
    small = {name: shape for name, shape in shapes().items() if not name.startswith("blk.1.")}
    good = write(tmp_path / "good.gguf", tensors=random_tensors(small), kind=Kind.Q8_0, block_count=1).read_bytes()
    end = good.index(b"blk.0.ffn_down.weight") + 60
    rng, path, refused = random.Random(0), tmp_path / "bad.gguf", []
    for turn in range(300):
        data = bytearray(good)
        if turn % 3 == 0:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(min(end, max(len(data), 1)))
            data[at : at + 1] = rng.choice(
                [b"\xff", b"\x00", bytes([rng.randrange(256)]), b"\xff" * 8, b"\x00" * 8, b""]
            )
        path.write_bytes(data)
        start = time.perf_counter()
        try:
            model = read_gguf(path)
            for name in model.tensors.keys():  # noqa: SIM118
                assert model.tensors[name].shape == model.tensors.shape(name)
            assert json.loads(model.tokenizer_json or "{}") is not None
        except ValueError as error:
            refused.append(str(error))
        assert time.perf_counter() - start < 60  # generous, for a busy machine
    assert 100 < len(refused) < 300
    assert all(str(path) in message for message in refused)
