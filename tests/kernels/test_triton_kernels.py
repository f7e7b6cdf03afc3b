"""The Triton kernels equal plain torch. Without a GPU they run in Triton's interpreter, where triton is installed."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

COMPARE = """
import torch
from glassformer.kernels import triton_kernels
from glassformer.kernels.kernel_set import NewTokens, TokenPlace
from glassformer.nn.masks import find_key_end

kernels = triton_kernels.TritonKernels()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
shapes = [(3, 4, 2, 1, 40, 16), (2, 3, 3, 4, 32, 64), (1, 9, 9, 1, 288, 64), (5, 2, 1, 2, 7, 32), (9, 8, 8, 1, 33, 64)]
for rows, heads, groups, n_queries, n_keys, width in shapes:
    q = torch.randn(rows, n_queries, heads, width, device=device).transpose(1, 2)
    keys, values = torch.randn(2, rows, groups, n_keys, width, device=device)
    k, v = torch.randn(2, rows, 1, groups, width, device=device).transpose(2, 3)
    place = torch.tensor([n_keys - 2], device=device)
    expected = [store.index_copy(2, place, new) for store, new in ((keys, k), (values, v))]
    empty = TokenPlace(keys.clone(), values.clone(), place)
    kernels.write_token(k, v, keys, values, place)
    assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
    allowed = torch.rand(rows, 1, n_queries, n_keys, device=device) > 0.5
    allowed[..., n_keys * 2 // 3 :] = False  # the cache is not full
    allowed[0] = False  # all keys of one row are masked
    bias = torch.randn(1, heads, n_queries, n_keys, device=device)
    added = torch.where(allowed, bias, -torch.inf)
    scores = q * 0.3 @ keys.repeat_interleave(heads // groups, 1).mT + added
    weights = torch.where(allowed.any(-1, keepdim=True), scores.softmax(-1), 0.0)
    right = weights @ values.repeat_interleave(heads // groups, 1)
    found = kernels.attend(q, keys, values, added, find_key_end(allowed), 0.3)
    assert (found - right).abs().max() < 1e-5
    if device == "cuda":
        short = kernels.attend(*(x.bfloat16() for x in (q, keys, values, added)), find_key_end(allowed), 0.3)
        assert (short - right).abs().max() < 0.05
    if n_queries == 1:
        found = kernels.write_and_attend(q, NewTokens(k, v, empty), added, find_key_end(allowed), 0.3)
        assert torch.equal(empty.keys, keys) and torch.equal(empty.values, values)
        assert (found - right).abs().max() < 1e-5
    alone = kernels.attend(q, keys, values, added, torch.tensor([n_keys], device=device), 0.3)
    assert (alone - right).abs().max() < 1e-5
    for together in {1, rows}:  # groups of one row cannot move; in one group all rows move, up to `place`
        group = torch.arange(rows, device=device) // together * together
        order = group + torch.randint(together, (rows,), device=device)
        filled = torch.arange(n_keys, device=device)[:, None] < place
        moved = [torch.where(filled, store[order], store) for store in (keys, values)]
        kernels.move_rows(keys, values, order, width=together, position=place, length=None)
        assert torch.equal(keys, moved[0]) and torch.equal(values, moved[1])
keys, values = torch.randn(2, 5, 3, 9, 16, device=device)
k, v = torch.randn(2, 4, 1, 3, 16, device=device).transpose(2, 3)
places = torch.tensor([8, 0, 3, 3], device=device)
expected = [store.clone() for store in (keys, values)]
for store, new in zip(expected, (k, v)):
    store[torch.arange(4), :, places] = new[:, :, 0]
assert kernels.can_write_rows(k, v, keys)
kernels.write_rows(k, v, keys, values, places)
assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernels_equal_plain_torch():
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "-c", COMPARE], check=False, env=environment, capture_output=True, text=True)
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stderr
