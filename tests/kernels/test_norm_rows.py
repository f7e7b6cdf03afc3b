"""Norms and their gradients are those of torch, in plain torch and by the kernels."""

import pytest
import torch
import torch.nn.functional as F

from glassformer.kernels import norm_rows
from glassformer.kernels.norm_rows import add_and_normalize, norm_gradient

COMPARE = """
import torch
from glassformer.kernels import norm_rows as module

has_gpu = torch.cuda.is_available()
device = "cuda" if has_gpu else "cpu"
if not has_gpu:
    module.N_PROGRAMS = 7  # because the interpreter is slow


def both(function, *arguments):
    found = []
    for is_kernel in (True, False):
        module._can_use_kernel = lambda *tensors: is_kernel
        found.append(function(*arguments))
    return zip(*found, strict=True)


torch.manual_seed(0)
for n_rows, width in [(20, 16), (9, 48), (1, 520), *([(3000, 768)] if has_gpu else [])]:
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 3e-2)):
        for is_centered in (True, False):
            for p in (0.0, 0.3):
                x, branch, upstream, passed = torch.randn(4, n_rows, width, device=device).to(dtype)
                weight, bias = torch.randn(2, width, device=device).to(dtype)
                seed = torch.randint(module.N_VALUES, (2,), device=device) if p else None
                arguments = x, branch, weight, bias if is_centered else None, seed, 1e-5, p, is_centered
                for found, right in both(module.add_and_normalize, *arguments):
                    torch.testing.assert_close(found, right, atol=tolerance, rtol=tolerance)
                total, _, means, scales = module.add_and_normalize(*arguments)
                for more in (None, passed):
                    arguments = upstream, total, means, scales, weight, more, seed, p, is_centered
                    for found, right in both(module.norm_gradient, *arguments):
                        if found.dim() == 3:
                            found, right = found.sum(0), right.sum(0)
                        torch.testing.assert_close(found, right, atol=10 * tolerance, rtol=tolerance)
"""


def test_the_kernels_equal_plain_torch(run_kernels):
    run_kernels(COMPARE)


@pytest.mark.parametrize("is_centered", [True, False])
def test_norms_and_gradients_are_those_of_torch(is_centered):
    torch.manual_seed(0)
    x, branch = (torch.randn(5, 12, dtype=torch.float64).float().requires_grad_() for _ in range(2))
    weight, bias = (torch.randn(12, requires_grad=True) for _ in range(2))
    upstream, passed = torch.randn(2, 5, 12)
    total = x + branch
    right = F.layer_norm(total, (12,), weight, bias, 1e-3) if is_centered else F.rms_norm(total, (12,), weight, 1e-3)
    parameters = [weight, bias] if is_centered else [weight]
    expected = torch.autograd.grad([right, total], [x, branch, *parameters], [upstream, passed])
    with torch.no_grad():
        own, y, means, scales = add_and_normalize(
            x, branch, weight, bias if is_centered else None, None, 1e-3, 0.0, is_centered
        )
        of_x, of_branch, sums = norm_gradient(upstream, own, means, scales, weight, passed, None, 0.0, is_centered)
    torch.testing.assert_close(own, total)
    torch.testing.assert_close(y, right, atol=1e-5, rtol=1e-5)
    found = [of_x, of_x, *sums.sum(0)[: len(parameters)]]
    torch.testing.assert_close(found, list(expected), atol=1e-5, rtol=1e-5)
    assert not len(of_branch)


def test_dropout_has_its_rate_and_mean_and_depends_on_the_seed():
    ones = torch.ones(64, 1000)
    seeds = torch.tensor([[1, 2], [1, 3], [2, 2], [0, 0]])
    dropped = [norm_rows._dropped(ones, seed, 0.25) for seed in seeds]
    for kept in dropped:
        assert kept.unique().tolist() == pytest.approx([0.0, 4 / 3])
        assert kept.mean().item() == pytest.approx(1.0, abs=0.01)  # 64,000 elements: 4.4 standard deviations
        for axis in (0, 1):  # neighbors are independent
            one, other = kept.narrow(axis, 0, kept.shape[axis] - 1), kept.narrow(axis, 1, kept.shape[axis] - 1)
            assert torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].abs() < 0.02
    shares = [(a == b).float().mean().item() for i, a in enumerate(dropped) for b in dropped[:i]]
    assert shares == pytest.approx([0.25**2 + 0.75**2] * 6, abs=0.01)


def test_the_gradient_drops_what_the_forward_pass_dropped():
    torch.manual_seed(0)
    x, branch, upstream = torch.randn(3, 4, 8)
    seed, weight = torch.randint(norm_rows.N_VALUES, (2,)), torch.ones(8)
    total, _, means, scales = add_and_normalize(x, branch, weight, None, seed, 1e-5, 0.5, True)
    of_x, of_branch, _ = norm_gradient(upstream, total, means, scales, weight, None, seed, 0.5, True)
    is_kept = total != x
    assert 0 < is_kept.sum() < is_kept.numel()
    torch.testing.assert_close(of_branch, torch.where(is_kept, 2 * of_x, 0.0))


def test_the_shapes_are_known_without_computing():
    x, branch, upstream = torch.randn(3, 4, 8)
    seed, weight = torch.tensor([5, 7]), torch.ones(8)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(add_and_normalize, (x, branch, weight, None, seed, 1e-5, 0.5, True), test_utils=checks)
    means, scales = torch.rand(2, 4)
    arguments = upstream, x, means, scales, weight, branch, seed, 0.5, False
    torch.library.opcheck(norm_gradient, arguments, test_utils=checks)
