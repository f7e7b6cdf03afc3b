"""Short attention equals the math backend, forward and backward; the kernels run on a GPU or in the interpreter."""

import importlib.util

import pytest
import torch

from glassformer.kernels import short_attention as module
from glassformer.kernels.short_attention import (
    MAX_LENGTH,
    max_length,
    short_attention,
    short_cross_attention_gradient,
    short_self_attention_gradient,
)
from glassformer.nn.attention_backends import attend
from glassformer.nn.masks import Mask

MASKS = {"none": (False, False), "causal": (False, True), "real": (True, False), "both": (True, True)}


def make_inputs(n_queries, n_keys, dtype, batch=3, heads=2, width=8):
    """Return q, k and v as views of joined projections, and the gradient of the result."""
    torch.manual_seed(0)
    own = torch.randn(batch, n_queries, 3, heads, width, dtype=dtype)
    memory = own if n_keys == n_queries else torch.randn(batch, n_keys, 3, heads, width, dtype=dtype)
    q, k, v = own[:, :, 0].transpose(1, 2), memory[:, :, 1].transpose(1, 2), memory[:, :, 2].transpose(1, 2)
    return q, k, v, torch.randn(batch, n_queries, heads, width, dtype=dtype)


def make_real(batch, n_keys):
    """Return padding: a sequence without padding, one without any real token, and one with padding on both sides."""
    real = torch.ones(batch, n_keys, dtype=torch.bool)
    real[1] = False
    real[2, : n_keys // 4] = False
    real[2, -(n_keys // 4) or n_keys :] = False
    return real


def right_results(q, k, v, gradient, real, causal, scale):
    """Return the output and the gradients by q, k and v of the math backend, (B, T or S, C) each."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    output = attend(q, k, v, mask=Mask(real=real, causal=causal), scale=scale, backend="math").output
    found = output.detach(), *torch.autograd.grad(output, (q, k, v), gradient.transpose(1, 2))
    return [x.transpose(1, 2).flatten(2) for x in found]


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "name"),
    [(length, length, name) for length in (1, 2, 17, 64, 128) for name in MASKS]
    + [(*lengths, name) for lengths in ((1, 9), (128, 3)) for name in ("none", "real")],  # causal: as many as keys
)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_outputs_and_gradients_are_those_of_the_math_backend(n_queries, n_keys, name, dtype, bound):
    has_real, causal = MASKS[name]
    q, k, v, gradient = make_inputs(n_queries, n_keys, dtype)
    real = make_real(len(q), n_keys) if has_real else None
    right, *gradients = right_results(q, k, v, gradient, real, causal, 0.3)
    found = short_attention(q, k, v, real, causal, 0.3)
    assert found.is_contiguous()
    torch.testing.assert_close(found.flatten(2), right, atol=bound, rtol=bound)
    if has_real:
        assert not found[1].any()
    results = []
    if n_queries == n_keys:
        joined, sums = short_self_attention_gradient(gradient, q, k, v, real, causal, 0.3)
        results.append((joined.chunk(3, 2), sums.chunk(3, 1)))
    if not causal:
        of_q, of_kv, q_sums, kv_sums = short_cross_attention_gradient(gradient, q, k, v, real, 0.3)
        results.append(((of_q, *of_kv.chunk(2, 2)), (q_sums, *kv_sums.chunk(2, 1))))
    for parts, sums_of_parts in results:
        for part, sums, expected in zip(parts, sums_of_parts, gradients, strict=True):
            torch.testing.assert_close(part, expected, atol=10 * bound, rtol=10 * bound)
            torch.testing.assert_close(sums, expected.sum(1), atol=100 * bound, rtol=100 * bound)
            if has_real:
                assert not part[1].any()


def test_half_precision_is_computed_in_float32():
    q, k, v, gradient = make_inputs(9, 9, torch.float32)
    narrow = [x.bfloat16() for x in (q, k, v, gradient)]
    wide = [x.float() for x in narrow]
    found, right = (short_attention(*inputs[:3], None, True, 0.3) for inputs in (narrow, wide))
    assert torch.equal(found, right.bfloat16())
    _, sums = short_self_attention_gradient(narrow[3], *narrow[:3], None, True, 0.3)
    assert sums.dtype == torch.float32


@pytest.mark.parametrize("has_real", [False, True])
def test_shapes_are_known_without_computing(has_real):
    q, k, v, gradient = make_inputs(5, 5, torch.float32)
    real = make_real(len(q), 5) if has_real else None
    arguments = {
        short_attention: (q, k, v, real, True, 0.3),
        short_self_attention_gradient: (gradient, q, k, v, real, True, 0.3),
        short_cross_attention_gradient: (gradient, q, k, v, real, 0.3),
    }
    for operator, given in arguments.items():
        torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))


def test_empty_sequences_give_zeros():
    q, k, v, gradient = make_inputs(3, 0, torch.float32)
    assert not short_attention(q, k, v, None, False, 0.3).any()
    of_q, of_kv, _, _ = short_cross_attention_gradient(gradient, q, k, v, None, 0.3)
    assert not of_q.any()
    assert of_kv.shape == (3, 0, 32)


def test_lengths_are_limited_by_the_memory_of_a_program(monkeypatch):
    class Properties:
        shared_memory_per_block_optin = 227 * 1024

    gpu = torch.device("cuda")
    monkeypatch.setattr(module, "max_length", max_length.__wrapped__)
    monkeypatch.setattr(module, "HAS_TRITON", True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert [module.max_length(gpu, width) for width in (16, 24, 64, 80, 128, 256, 512)] == [
        128,
        128,
        128,
        64,
        64,
        32,
        0,
    ]
    Properties.shared_memory_per_block_optin = 64 * 1024
    assert [module.max_length(gpu, width) for width in (64, 80)] == [64, 64]
    monkeypatch.setattr(module, "HAS_TRITON", False)
    assert module.max_length(gpu, 64) == 0
    assert module.max_length(torch.device("cpu"), 64) == MAX_LENGTH


COMPARE = """
import itertools

import torch
from glassformer.kernels import short_attention as module

device = "cuda" if torch.cuda.is_available() else "cpu"
dtypes = {torch.float32: 2e-5} | ({torch.bfloat16: 2e-2} if device == "cuda" else {})
shapes = [(1, 1, 16), (5, 5, 16), (33, 33, 24), (40, 70, 16), (128, 128, 16), (9, 128, 32)]
torch.manual_seed(0)


def heads(parts, length, width):
    joined = torch.randn(2, length, parts * 4 * width, device=device)
    return [part.unflatten(-1, (4, width)).transpose(1, 2) for part in joined.chunk(parts, 2)]


for (n_queries, n_keys, width), has_real, causal in itertools.product(shapes, (0, 1), (0, 1)):
    if causal and n_queries != n_keys:
        continue
    q, k, v = heads(3, n_keys, width)
    q = q if n_queries == n_keys else heads(1, n_queries, width)[0]
    real = torch.rand(2, 2 * n_keys, device=device)[:, ::2] > 0.3 if has_real else None
    if has_real:
        real[0] = False
    gradient = torch.randn(2, n_queries, 4, width, device=device)
    for dtype, bound in dtypes.items():
        results = []
        for uses_kernel in (False, True):
            module._can_use_kernel = lambda *tensors: uses_kernel
            g, *given = (x.to(dtype if uses_kernel else torch.float64) for x in (gradient, q, k, v))
            found = [module.short_attention(*given, real, bool(causal), 0.3)]
            if n_queries == n_keys:
                found += module.short_self_attention_gradient(g, *given, real, bool(causal), 0.3)
            if not causal:
                found += module.short_cross_attention_gradient(g, *given, real, 0.3)
            results.append(found)
        for right, found in zip(*results, strict=True):
            largest = right.abs().max().clamp_min(1.0)
            assert (found - right).abs().max() / largest < bound, (n_queries, n_keys, width, has_real, causal, dtype)
"""


def test_kernels_equal_plain_torch(run_kernels):
    run_kernels(COMPARE)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 100, 128])
def test_a_program_holds_the_whole_sequence_and_head(length):
    blocks = module.launch_options(length, 128 // length, 24)
    assert all(size >= 32 and size & (size - 1) == 0 for size in (blocks["query_block"], blocks["key_block"]))
    assert length <= blocks["query_block"] < max(33, 2 * length)
    assert blocks["lane_block"] == 32
