"""Products in tiles equal plain torch. Without a GPU they run in Triton's interpreter, where triton is installed."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from glassformer.kernels.kernel_set import KernelSet, NormWeights

COMPARE = """
import itertools
import torch
from glassformer.kernels import triton_tiles
from glassformer.kernels.kernel_set import ACTIVATIONS, KernelSet, NormWeights
from glassformer.kernels.triton_kernels import TritonKernels
from glassformer.kernels.triton_tiles import Tiling, choose_tiling, multiply_tiles

plain, kernels = KernelSet(), TritonKernels()
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32  # the interpreter multiplies no bfloat16
tolerance = {torch.bfloat16: 0.01, torch.float32: 2e-6}[dtype]
torch.manual_seed(0)


def random(*shape):
    return torch.randn(shape, device=device).to(dtype)


def widen(value):
    return value.float() if isinstance(value, torch.Tensor) else value


def compare(found, right):
    assert found.shape == right.shape
    assert (found.float() - right).norm() < tolerance * right.norm()


def compare_product(n_rows, n_inputs, n_outputs, activation, gated, has_bias, tiling):
    x, weight = random(n_rows, 1, n_inputs), random(n_outputs * (2 if gated else 1), n_inputs) / n_inputs**0.5
    bias = random(len(weight)) if has_bias else None
    given = {"activation": activation, "gated": gated}
    found = multiply_tiles(x, weight, bias, **given, tiling=tiling)
    assert found.dtype == (dtype if len(found) == 1 else torch.float32) and len(found) <= tiling.parts
    right = plain.fused_linear(x.float(), weight.float(), widen(bias), **given)
    compare(found.float().sum(0), right)


with torch.inference_mode():
    for number, activation in enumerate(ACTIVATIONS):
        tiling = Tiling(16 + 16 * (number % 2), 1, 64 if number % 3 else 32, 1 + number % 3, 4)
        sizes = (5 + 9 * number, 128 + 64 * (number % 2), 40 + number)
        compare_product(*sizes, activation, number % 2 == 0, number != 1, tiling)
    compare_product(17, 100, 33, None, False, False, Tiling(16, 3, 16, 2, 4))  # the last parts are smaller
    compare_product(3, 64, 20, None, False, False, Tiling(16, 4, 64, 2, 4))  # a single part is enough
    compare_product(3, 160, 20, None, False, False, Tiling(16, 2, 32, 2, 4))
    if device == "cuda":
        for n_rows, (n_inputs, n_outputs) in itertools.product(
            (5, 16, 33, 64, 100, 128), ((768, 768), (3072, 768), (768, 3072), (512, 1536), (2048, 512), (640, 50))
        ):
            x, bias = random(n_rows, 1, n_inputs), random(n_outputs)
            weight = random(n_outputs, n_inputs) / n_inputs**0.5
            assert triton_tiles.can_multiply_tiles(x, weight) == (torch.cuda.get_device_capability() >= (9, 0))
            right = torch.relu(x.float() @ weight.float().T + bias.float())
            compare(kernels.fused_linear(x, weight, bias, activation="relu"), right)
            compare(kernels.linear_in_parts(x, weight).sum(0), x.float() @ weight.float().T)
            right = plain.fused_linear(x.float(), weight.float(), activation="silu", gated=True)
            compare(kernels.fused_linear(x, weight, activation="silu", gated=True), right)

    for n_rows, width, n_parts in ((7, 33, 3), (2, 512, 1), (64, 768, 4)):
        x, parts = random(n_rows, 1, width), torch.randn(n_parts, n_rows, 1, width, device=device)
        bias, scale, shift = random(width), random(width), random(width)
        norms = NormWeights(scale, shift, 1e-5, True), NormWeights(scale, None, 1e-6, False), None
        for norm, added, own_bias in itertools.product(norms, (parts, parts[:1].to(dtype), None), (bias, None)):
            wide = None if norm is None else NormWeights(*map(widen, norm))
            right = plain.add_and_normalize(x.float(), widen(added), widen(own_bias), wide)
            for found, expected in zip(kernels.add_and_normalize(x, added, own_bias, norm), right, strict=True):
                compare(found, expected)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernels_equal_plain_torch():
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "-c", COMPARE], check=False, env=environment, capture_output=True, text=True)
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize(
    ("n_rows", "n_outputs", "n_inputs", "parts"),
    [(64, 768, 768, 2), (64, 768, 3072, 4), (128, 512, 512, 4), (128, 512, 2048, 4), (16, 4096, 1024, 1)],
)
def test_a_tiling_covers_all_inputs_and_fits_into_the_shared_memory(n_rows, n_outputs, n_inputs, parts):
    from glassformer.kernels.triton_tiles import choose_tiling

    for max_bytes in (99_000, 227_000):
        found = choose_tiling(n_rows, n_outputs, n_inputs, can_be_parts=True, max_bytes=max_bytes)
        assert found.parts == parts
        assert found.stages * found.block * 2 * (max(16, n_rows) + found.tile) <= max_bytes
    assert choose_tiling(n_rows, n_outputs, n_inputs, can_be_parts=False, max_bytes=max_bytes).parts == 1


def test_the_plain_sum_of_parts_has_the_norm_of_the_modules():
    torch.manual_seed(0)
    x, parts, bias, norm = torch.randn(2, 1, 6), torch.randn(3, 2, 1, 6), torch.randn(6), torch.nn.RMSNorm(6, eps=1e-6)
    total, y = KernelSet().add_and_normalize(x, parts, bias, NormWeights(norm.weight, None, 1e-6, False))
    assert torch.allclose(total, x + parts.sum(0) + bias)
    assert torch.allclose(y, norm(x + parts.sum(0) + bias))
    total, y = KernelSet().add_and_normalize(x, None, None, None)
    assert total is x
    assert y is x
