"""The row kernels equal plain torch. Without a GPU they run in Triton's interpreter, where triton is installed."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

COMPARE = """
import torch
import torch.nn.functional as F
from glassformer.kernels.kernel_set import KernelSet
from glassformer.kernels.triton_kernels import TritonKernels
from glassformer.nn.masks import AdditiveMask, Mask, find_key_end

kernels = TritonKernels()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def close(found, right, tolerance=1e-5):
    assert found.shape == right.shape and found.dtype == right.dtype
    assert (found.double() - right.double()).abs().max() < tolerance * right.double().abs().max()


with torch.inference_mode():
    for shape in ((3, 1, 20), (2, 3, 64), (1, 4, 2, 33)):
        x = torch.randn(shape, device=device) + 0.5
        weight, bias = torch.randn(2, shape[-1], device=device)
        assert kernels.has_row_kernels(x, weight, bias) and not kernels.has_row_kernels(x, weight.double())
        close(kernels.layer_norm(x, weight, bias, 1e-5), F.layer_norm(x, shape[-1:], weight, bias, 1e-5))
        close(kernels.layer_norm(x.transpose(0, 1), None, None, 1e-5), F.layer_norm(x.transpose(0, 1), shape[-1:]))
        close(kernels.rms_norm(x, weight, 1e-6), F.rms_norm(x, shape[-1:], weight, 1e-6))
        gate, up = torch.randn(*shape[:-1], 2 * shape[-1], device=device).chunk(2, -1)
        close(kernels.silu_gate(gate, up), F.silu(gate) * up)
    for positions in (torch.arange(5)[None] + 30_000, torch.randint(0, 9, (3, 4))[:, ::2]):
        positions = positions.to(device)
        for half in (6, 32):
            frequencies = 10000.0 ** -(torch.arange(half, device=device, dtype=torch.float64) / half)
            assert kernels.can_find_angles(positions)
            found = kernels.find_angles(positions, frequencies)
            for one, right in zip(found, KernelSet().find_angles(positions, frequencies), strict=True):
                close(one, right, 1e-12)
    for batch, heads, length, width in ((2, 3, 4, 16), (1, 1, 1, 12), (3, 5, 1, 32)):
        x = torch.randn(batch, length, heads, width, device=device).transpose(1, 2)
        for rows in {1, batch}:
            angle = torch.randn(rows, 1, length, width // 2, device=device, dtype=torch.float64)
            cos, sin = angle.cos(), angle.sin()
            one, two = x.double().chunk(2, -1)
            right = torch.cat((one * cos - two * sin, two * cos + one * sin), -1).float()
            close(kernels.rotate(x, cos, sin), right)
            if device == "cuda":
                close(kernels.rotate(x.bfloat16(), cos, sin), right.bfloat16(), 0.02)
    for width, length in ((16, 1), (33, 4)):
        table, of_places = torch.randn(2, 50, width, device=device)
        tokens = torch.randint(0, 50, (6, length), device=device)[::2]
        for places in (torch.arange(length, device=device)[None] + 7, torch.randint(0, 50, (3, length), device=device)):
            assert kernels.can_embed(tokens, table) and not kernels.can_embed(tokens, table.double())
            for scale, added in ((None, None), (None, of_places[5:]), (4.5, of_places), (0.3, None)):
                places = places.clamp_max(44)
                for dtype in (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,):
                    rounded = table.to(dtype), None if added is None else added.to(dtype)
                    found = kernels.embed(tokens, rounded[0], scale, places, rounded[1])
                    assert torch.equal(found, KernelSet().embed(tokens, rounded[0], scale, places, rounded[1]))
    for n_keys, place in ((1, 0), (9, 4), (5000, 4500)):
        real = torch.rand(3, n_keys, device=device) > 0.4
        real[:, place:] = False
        count, expected = real.sum(1, keepdim=True), real.clone()
        expected[:, place] = True
        assert kernels.can_number_step(real, torch.float32)
        found = kernels.number_step(real, torch.tensor([place], device=device), torch.float32, 2000)
        assert torch.equal(real, expected)
        assert torch.equal(found.positions, count.clamp_max(1999))
        assert torch.equal(found.added[:, 0, 0], torch.where(expected, 0.0, -torch.inf))
        assert found.key_end.tolist() == [place + 1]
        real[0] = False  # padding only
        right = AdditiveMask.of(Mask(real=real), 1, n_keys, None, torch.empty(0, device=device))
        found = kernels.mask_padding(real, torch.float32)
        is_empty = ~real.any(1)
        assert torch.equal(found.added, right.values)
        assert torch.equal(found.is_empty[:, 0, 0, 0], is_empty)
        assert torch.equal(found.safe, torch.where(is_empty[:, None, None, None], 0.0, right.values))
        assert torch.equal(found.key_end, find_key_end(real[:, None, None]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernels_equal_plain_torch():
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "-c", COMPARE], check=False, env=environment, capture_output=True, text=True)
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stderr
