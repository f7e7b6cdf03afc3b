"""The fused products equal plain torch. Without a GPU they run in Triton's interpreter, where triton is installed."""

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
from glassformer.kernels import triton_products
from glassformer.kernels.kernel_set import ACTIVATIONS, KernelSet, NormWeights
from glassformer.kernels.triton_kernels import TritonKernels

plain, kernels = KernelSet(), TritonKernels()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def compare(n_rows, n_inputs, n_outputs, norm, activation, gated, has_bias, has_residual):
    x = torch.randn(n_rows, 1, n_inputs, device=device) + 0.5
    weight = torch.randn(n_outputs * (2 if gated else 1), n_inputs, device=device) * n_inputs**-0.5
    bias = torch.randn(len(weight), device=device) if has_bias else None
    residual = torch.randn(n_rows, 1, n_outputs, device=device) if has_residual else None
    scale, shift = torch.rand(n_inputs, device=device) + 0.5, torch.randn(n_inputs, device=device)
    norms = {None: None, "layer": NormWeights(scale, shift, 1e-5, True), "rms": NormWeights(scale, None, 1e-6, False)}
    given = {"norm": norms[norm], "activation": activation, "gated": gated, "residual": residual}
    right = plain.fused_linear(x, weight, bias, **given)
    found = kernels.fused_linear(x, weight, bias, **given)
    assert found.shape == right.shape
    assert (found - right).abs().max() < 2e-5 * right.abs().max(), (n_rows, n_inputs, n_outputs, given)
    if device == "cuda":
        short = {name: value.bfloat16() if isinstance(value, torch.Tensor) else value for name, value in given.items()}
        if norms[norm] is not None:
            halves = [part.bfloat16() if isinstance(part, torch.Tensor) else part for part in norms[norm]]
            short["norm"] = NormWeights(*halves)
        bias = None if bias is None else bias.bfloat16()
        found = kernels.fused_linear(x.bfloat16(), weight.bfloat16(), bias, **short)
        assert (found - right).norm() < 0.02 * right.norm(), (n_rows, n_inputs, n_outputs, given)


with torch.inference_mode():
    assert kernels.can_fuse_linear(torch.zeros(2, 1, 4, device=device))
    assert not kernels.can_fuse_linear(torch.zeros((1 << 14) + 1, 1, 4, device=device))
    for number, (norm, activation) in enumerate(itertools.product((None, "layer", "rms"), ACTIVATIONS)):
        sizes, flags = (1 + number % 3, 48 + number, 20 + number), (number % 2 == 0, number % 3 > 0, number % 5 > 1)
        compare(*sizes, norm, activation, *flags)
        compare(9 + number, *sizes[1:], norm, activation, *flags)  # by torch's product
    triton_products.MAX_TILE = triton_products.LARGE_TILE = 64  # several blocks of columns
    compare(2, 40, 9, "layer", "gelu", False, True, True)
    compare(1, 33, 7, "rms", "silu", True, False, False)
    if device == "cuda":
        triton_products.MAX_TILE, triton_products.LARGE_TILE = 1 << 14, 1 << 13
        for sizes in ((1, 768, 2304), (1, 3072, 768), (4, 768, 3072), (1, 8192, 2048), (3, 768, 50257)):
            compare(*sizes, "layer", None, False, True, False)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernels_equal_plain_torch():
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "-c", COMPARE], check=False, env=environment, capture_output=True, text=True)
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stderr


def test_a_plain_product_is_the_norm_the_product_the_gate_and_the_sum():
    torch.manual_seed(0)
    x, weight, bias, residual = torch.randn(2, 1, 6), torch.randn(8, 6), torch.randn(8), torch.randn(2, 1, 4)
    norm = torch.nn.LayerNorm(6)
    torch.nn.init.normal_(norm.weight)
    given = NormWeights(norm.weight, norm.bias, norm.eps, True)
    y = norm(x) @ weight.T + bias
    right = torch.nn.functional.silu(y[..., :4]) * y[..., 4:] + residual
    found = KernelSet().fused_linear(x, weight, bias, norm=given, activation="silu", gated=True, residual=residual)
    assert torch.allclose(found, right, atol=1e-5)
