"""The gradient of an embedding table is that of torch, in plain torch and by the kernels."""

import torch

from glassformer.kernels.embedding_gradient import embedding_gradient

COMPARE = """
import torch
from glassformer.kernels import embedding_gradient as module

has_gpu = torch.cuda.is_available()
device = "cuda" if has_gpu else "cpu"
if not has_gpu:  # small chunks and blocks, because the interpreter is slow
    module.CHUNK, module.MAX_BLOCK, module.TILE = 16, 16, 2
    module._can_use_kernel = lambda gradient: True
torch.manual_seed(0)
# (tokens, ids, columns): one token; chunks of one id and of many; ids of 16 and of 32 bits
shapes = [(1, 5, 3), (16, 5, 16), (33, 40000, 17), (100, 3, 20), (90, 1, 16), (160, 65536, 24), (150, 70000, 16)]
shapes += [(20000, 50304, 768), (9000, 70000, 130), (5000, 3, 64)] if has_gpu else []
for n_tokens, n_ids, width in shapes:
    for frequent in (0.0, 0.5):  # the share of the tokens that have the last id
        ids = torch.randint(n_ids, (n_tokens,), device=device)
        ids[torch.rand(n_tokens, device=device) < frequent] = n_ids - 1
        for dtype in (torch.float32, *([torch.bfloat16] if has_gpu else [])):  # the interpreter has no bf16 products
            gradient = torch.randn(n_tokens, width, device=device).to(dtype)
            assert module._can_use_kernel(gradient)
            found = module.embedding_gradient(gradient, ids, n_ids)
            right = torch.zeros(n_ids, width, dtype=torch.double, device=device).index_add_(0, ids, gradient.double())
            tolerance = 1e-4 if dtype == torch.float32 else 1e-2
            assert found.dtype == dtype
            torch.testing.assert_close(found.double(), right, atol=tolerance, rtol=tolerance)
            assert torch.equal(found, module.embedding_gradient(gradient, ids, n_ids))
"""


def test_the_kernels_equal_plain_torch(run_kernels):
    run_kernels(COMPARE)


def test_without_a_gpu_the_gradient_is_that_of_torch():
    torch.manual_seed(0)
    table, ids, upstream = torch.randn(9, 4, requires_grad=True), torch.tensor([3, 8, 3, 0]), torch.randn(4, 4)
    (right,) = torch.autograd.grad(table[ids], table, upstream)
    torch.testing.assert_close(embedding_gradient(upstream, ids, 9), right)


def test_the_shape_is_known_without_computing():
    arguments = torch.randn(4, 8), torch.tensor([1, 1, 0, 2]), 5
    torch.library.opcheck(embedding_gradient, arguments, test_utils=("test_schema", "test_faketensor"))
