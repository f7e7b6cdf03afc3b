"""Attention of a step in Triton equals plain torch. Without a GPU it runs in Triton's interpreter, if installed."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

COMPARE = """
import torch
from glassformer.kernels import triton_attention, triton_split_attention
from glassformer.kernels.kernel_set import NewTokens, TokenPlace
from glassformer.nn.masks import find_key_end
from glassformer.nn.positions import Rotation

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for name, value in {"KEYS_PER_SPLIT": 16, "SPLIT_BLOCK": 16}.items():
    setattr(triton_split_attention, name, value)
shapes = [(3, 4, 2, 1, 40, 16), (2, 4, 2, 3, 65, 32), (1, 9, 3, 1, 100, 64), (2, 20, 1, 1, 33, 16)]
for rows, heads, groups, n_queries, n_keys, width in shapes:
    q = torch.randn(rows, n_queries, heads, width, device=device).transpose(1, 2)
    k, v = torch.randn(2, rows, groups, n_keys, width, device=device)
    allowed = torch.rand(rows, 1, n_queries, n_keys, device=device) > 0.5
    allowed[..., n_keys * 2 // 3 :] = False  # the cache is not full
    allowed[0] = False  # all keys of one row are masked
    for bias in (torch.randn(1, heads, n_queries, n_keys, device=device), torch.zeros((), device=device)):
        added = torch.where(allowed, bias, -torch.inf)
        scores = q * 0.3 @ k.repeat_interleave(heads // groups, 1).mT + added
        weights = torch.where(allowed.any(-1, keepdim=True), scores.softmax(-1), 0.0)
        right = weights @ v.repeat_interleave(heads // groups, 1)
        for triton_attention.SPLIT_KEYS in (1, 10**9):  # in splits, and by one program per head
            for end in (find_key_end(allowed), torch.tensor([n_keys], device=device)):
                found = triton_attention.attend_filled(q, k, v, added, end, 0.3)
                assert (found - right).abs().max() < 1e-5, (rows, heads, triton_attention.SPLIT_KEYS)
            if n_queries == 1:  # a new token, which belongs where the cache ends, or at another place in each row
                for place in (torch.tensor([n_keys // 2]), torch.randint(n_keys, (rows,))):
                    place = place.to(device)
                    full, stale = (k.clone(), v.clone()), (k.clone(), v.clone())
                    rows_at = torch.arange(rows, device=device), slice(None), place.expand(rows)
                    new = NewTokens(
                        *torch.randn(2, rows, groups, 1, width, device=device), TokenPlace(*stale, place)
                    )
                    full[0][rows_at], full[1][rows_at] = new.k[:, :, 0], new.v[:, :, 0]
                    right_now = triton_attention.attend_filled(q, *full, added, end, 0.3)
                    found = triton_attention.attend_filled(q, *stale, added, end, 0.3, new)
                    assert torch.equal(stale[0], full[0]) and torch.equal(stale[1], full[1])
                    assert (found - right_now).abs().max() < 1e-6
                    for n_angles in (1, rows):  # the query and the new key are rotated
                        angles = torch.randn(n_angles, 1, 1, width // 2, device=device)
                        rotation = Rotation(angles.cos(), angles.sin())
                        full[0][rows_at] = rotation.rotate(new.k)[:, :, 0]
                        right_now = triton_attention.attend_filled(rotation.rotate(q), *full, added, end, 0.3)
                        found = triton_attention.attend_filled(
                            q, *stale, added, end, 0.3, new._replace(angles=rotation)
                        )
                        assert (stale[0] - full[0]).abs().max() < 1e-6 and torch.equal(stale[1], full[1])
                        assert (found - right_now).abs().max() < 1e-5
                    if device == "cuda":
                        new = new._replace(k=new.k.bfloat16(), v=new.v.bfloat16())
                        full[0][rows_at] = new.k[:, :, 0].float()
                        full, stale = ([x.bfloat16() for x in pair] for pair in (full, (k, v)))
                        short = [x.bfloat16() for x in (q, added)]
                        right_now = triton_attention.attend_filled(short[0], *full, short[1], end, 0.3)
                        found = triton_attention.attend_filled(short[0], *stale, short[1], end, 0.3, new)
                        assert torch.equal(found, right_now)
            if device == "cuda":
                short = (x.bfloat16() for x in (q, k, v, added))
                found = triton_attention.attend_filled(*short, find_key_end(allowed), 0.3)
                assert (found - right).abs().max() < 0.05
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_attention_in_splits_and_by_one_program_equals_plain_torch():
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "-c", COMPARE], check=False, env=environment, capture_output=True, text=True)
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stderr
