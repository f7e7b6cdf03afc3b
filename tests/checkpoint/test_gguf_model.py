"""Models whose weights stay as a GGUF file stores them compute what the dequantized model computes."""

import gguf
import numpy as np
import pytest
import torch

from checkpoint.small_gguf import WIDTH, Kind, random_tensors, shapes, write
from glassformer.checkpoint import load_model
from glassformer.checkpoint.gguf_file import read_gguf
from glassformer.checkpoint.gguf_model import has_quantized_tensors, import_quantized
from glassformer.decoding import Engine, GenerationConfig, generate
from glassformer.kernels.groupwise_matrix import GroupwiseMatrix
from glassformer.nn.groupwise_linear import GroupwiseEmbedding, GroupwiseLinear


def small(scale=0.1, **options):
    """Return random tensors like those of a trained model: small matrices, and norms around 1."""
    return {
        name: tensor * np.float32(scale) + np.float32(tensor.ndim == 1)
        for name, tensor in random_tensors(shapes(**options)).items()
    }


def logits(model, tokens):
    with torch.inference_mode():
        return model(tokens)


TOKENS = torch.arange(3, 27).view(2, 12)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_logits_are_those_of_the_dequantized_model(tmp_path, kind, architecture):
    extra = {"attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)} if architecture == "qwen3" else {}
    path = write(tmp_path / "m.gguf", architecture, small(extra=extra), kind)
    packed, exact = load_model(path, keep_quantized=True), load_model(path)
    found, expected = logits(packed, TOKENS), logits(exact, TOKENS)
    assert (found - expected).norm() < 1e-3 * expected.norm()
    layer = packed.decoder.layers[0]
    assert isinstance(layer.self_attn.qkv_proj, GroupwiseLinear)
    assert isinstance(layer.ffn.gate_up_proj, GroupwiseLinear)
    assert isinstance(packed.embeddings.tokens, GroupwiseEmbedding)
    assert packed.head.out_proj.matrix is packed.embeddings.tokens.matrix, "a tied table is stored once"
    assert {parameter.ndim for parameter in packed.parameters()} == {1}, "only norms are left in float32"


def test_plain_torch_computes_the_same(tmp_path, monkeypatch):
    path = write(tmp_path / "m.gguf", tensors=small(), kind=Kind.Q4_1)
    found = logits(load_model(path, keep_quantized=True), TOKENS)
    monkeypatch.setattr("glassformer.checkpoint.gguf_model.groupwise_matrix_class", lambda: GroupwiseMatrix)
    plain = logits(load_model(path, keep_quantized=True), TOKENS)
    assert (plain - found).norm() < 1e-4 * found.norm()


def test_a_text_has_the_same_logits_alone_and_in_a_batch(tmp_path):
    model = load_model(write(tmp_path / "m.gguf", tensors=small(), kind=Kind.Q4_1), keep_quantized=True)
    linear = model.decoder.layers[0].ffn.down_proj
    x = torch.randn(9, 5, linear.in_features)
    together = linear(x)
    assert all(torch.equal(linear(x[i : i + 1])[0], together[i]) for i in range(9))


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K])
def test_projections_in_different_formats_are_not_fused(tmp_path, kind):
    wide = {"ffn_gate.weight": (256, WIDTH), "ffn_up.weight": (256, WIDTH), "ffn_down.weight": (WIDTH, 256)}
    rng = np.random.default_rng(2)
    blocks = rng.integers(0, 60, (WIDTH, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    values = small()
    raw = {
        "blk.0.ffn_down.weight": (blocks, kind),
        "blk.0.attn_v.weight": (gguf.quantize(values["blk.0.attn_v.weight"], Kind.Q8_0), Kind.Q8_0),
        "blk.1.attn_q.weight": (values["blk.1.attn_q.weight"], Kind.F32),
        "blk.1.ffn_up.weight": (rng.normal(size=(256, WIDTH)).astype(np.float32) / 10, Kind.F32),
    }
    path = write(tmp_path / "m.gguf", tensors=small(extra=wide), kind=Kind.Q4_1, raw=raw, feed_forward_length=256)
    packed, exact = load_model(path, keep_quantized=True), load_model(path)
    first, second = packed.decoder.layers
    assert first.self_attn.qkv_proj is None
    assert second.self_attn.qkv_proj is None
    assert type(second.self_attn.q_proj) is torch.nn.Linear
    assert isinstance(second.self_attn.k_proj, GroupwiseLinear)
    assert second.ffn.gate_up_proj is None
    found, expected = logits(packed, TOKENS), logits(exact, TOKENS)
    assert (found - expected).norm() < 1e-2 * expected.norm()


def test_biases_and_an_untied_output_are_kept(tmp_path):
    extra = {"attn_q.bias": (64,), "attn_k.bias": (32,), "attn_v.bias": (32,)}
    tensors = small(extra=extra)
    tensors["output.weight"] = tensors["token_embd.weight"][::-1].copy()
    path = write(tmp_path / "m.gguf", "qwen2", tensors, Kind.Q8_0)
    packed, exact = load_model(path, keep_quantized=True), load_model(path)
    assert packed.head.out_proj.matrix is not packed.embeddings.tokens.matrix
    expected = logits(exact, TOKENS)
    assert (logits(packed, TOKENS) - expected).norm() < 1e-3 * expected.norm()


def test_a_matrix_read_in_parts_is_the_same(tmp_path, monkeypatch):
    path = write(tmp_path / "m.gguf", tensors=small(), kind=Kind.Q4_0)
    whole = logits(load_model(path, keep_quantized=True), TOKENS)
    monkeypatch.setattr("glassformer.checkpoint.gguf_model.WEIGHTS_AT_ONCE", 1)
    assert torch.equal(logits(load_model(path, keep_quantized=True), TOKENS), whole)


def test_a_file_of_float_tensors_is_loaded_as_usual(tmp_path):
    external = read_gguf(write(tmp_path / "m.gguf", kind=Kind.F16))
    assert not has_quantized_tensors(external)
    assert load_model(tmp_path / "m.gguf", keep_quantized=True).n_parameters() > 10_000
    quantized = read_gguf(write(tmp_path / "q.gguf", kind=Kind.Q8_0))
    assert has_quantized_tensors(quantized)
    assert not import_quantized(quantized).training


def test_a_quantized_table_generates_with_a_cache_and_in_the_engine(tmp_path):
    """The table of tokens has no `weight`, whose dtype a step with a cache once asked for."""
    model = load_model(write(tmp_path / "m.gguf", tensors=small(), kind=Kind.Q4_1), keep_quantized=True)
    prompt, config = TOKENS[0].tolist(), GenerationConfig(max_new_tokens=4, min_new_tokens=4)
    (written,) = generate(model, [prompt], config, end=0)[0]
    text = list(prompt)
    for token in written.tokens:
        scores = logits(model, torch.tensor([text]))[0, -1].clone()
        scores[0] = float("-inf")
        assert scores[token] >= scores.max() - 1e-3
        text.append(token)
    engine = Engine(model, end=0, max_tokens=256)
    request = engine.submit(prompt, config)
    engine.run()
    assert request.error is None
    assert request.texts[0].tokens == written.tokens
