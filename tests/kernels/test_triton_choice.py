"""Triton chooses the tokens that torch chooses. Without a GPU its interpreter runs, where triton is installed."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

COMPARE = """
import torch
from glassformer.kernels import triton_choice, triton_kernels

kernels = triton_kernels.TritonKernels()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
for rows, vocab_size, dtype in [(1, 7, torch.float32), (5, 40, torch.bfloat16), (3, 1000, torch.float32)]:
    scores = torch.randint(-9, 9, (rows, vocab_size), device=device).to(dtype)
    scores[0, vocab_size // 2] = torch.nan
    bias = torch.zeros(vocab_size, device=device)
    bias[3] = -torch.inf
    tokens, place = torch.zeros(rows, 1, dtype=torch.long, device=device), torch.tensor([9], device=device)
    results = torch.zeros(4, 2, rows, device=device)
    kernels.choose_token(scores, bias, tokens, place, place - 2, results)
    best = (scores + bias).max(-1)
    assert torch.allclose(results[2, 0], best.values, equal_nan=True)
    right = torch.where(best.values.isnan()[:, None], scores.isnan(), scores + bias == best.values[:, None])
    assert tokens[:, 0].tolist() == results[2, 1].tolist() == right.int().argmax(1).tolist()
    assert not results[[0, 1, 3]].any()
    scores[-1] = -torch.inf
    values, found = kernels.best_token(scores)
    assert torch.equal(values.nan_to_num(99), scores.amax(-1).nan_to_num(99))
    assert torch.equal(found, torch.where(scores.isnan(), torch.inf, scores.float()).argmax(-1))
triton_choice.MAX_BLOCK = 16
scores = torch.randn(4, 50, device=device)
scores[:3, [5, 20, 49]] = 9.0
scores[1, 40], scores[2, [30, 7]] = torch.nan, torch.nan
bias, slot = torch.zeros(50, device=device), torch.zeros(1, dtype=torch.long, device=device)
tokens, results = torch.zeros(4, 1, dtype=torch.long, device=device), torch.zeros(1, 2, 4, device=device)
kernels.choose_token(scores, bias, tokens, slot, slot, results)  # in blocks of 16
assert tokens[:, 0].tolist() == [5, 40, 7, int(scores[3].argmax())]
assert results[0, 0].isnan().tolist() == [False, True, True, False]
triton_choice.SPLIT_CHOICE, triton_choice.PART_OF_CHOICE = 8, 16  # several programs for each row
tokens.zero_(), results.zero_()
kernels.choose_token(scores, bias, tokens, slot, slot, results)
assert tokens[:, 0].tolist() == results[0, 1].tolist() == [5, 40, 7, int(scores[3].argmax())]
assert results[0, 0].isnan().tolist() == [False, True, True, False]
assert results[0, 0, 3] == scores[3].max()
triton_choice.MAX_BLOCK = 64
bias[[5, 6]] = -torch.inf
found, whose = kernels.best_tokens(scores, bias, 49)
logs = scores.log_softmax(-1) + bias
assert torch.allclose(found, logs.topk(49).values, atol=1e-5, equal_nan=True)
assert torch.allclose(found, logs.gather(1, whose), atol=1e-5, equal_nan=True)
assert all(len({*row}) == 49 for row in whose.tolist())
scores = torch.randint(-4, 4, (4, 50), device=device).float()
_, whose = kernels.best_tokens(scores, torch.zeros(50, device=device), 20)
assert torch.equal(whose, scores.sort(descending=True, stable=True).indices[:, :20]), "ties by the lower token"
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_chosen_tokens_equal_those_of_plain_torch():
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run([sys.executable, "-c", COMPARE], check=False, env=environment, capture_output=True, text=True)
    if "InterpreterError: TypeError('only 0-dimensional arrays" in done.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stderr
