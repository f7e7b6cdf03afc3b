import pytest
import torch

from glassformer.nn import make_norm


@pytest.mark.parametrize("kind", ["layer", "rms", "mean_std"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_norm_is_accurate_for_large_inputs(kind, dtype):
    x = torch.randn(4, 64) * 400
    exact = make_norm(kind, 64, 1e-6)(x)
    half = make_norm(kind, 64, 1e-6).to(dtype)(x.to(dtype))
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("kind", ["layer", "rms", "mean_std"])
def test_norm_of_equal_inputs_has_finite_gradients(kind):
    x = torch.zeros(2, 8, requires_grad=True)
    make_norm(kind, 8, 1e-6)(x).sum().backward()
    assert x.grad.isfinite().all()
