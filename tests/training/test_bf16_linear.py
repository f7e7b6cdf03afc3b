"""Linear layers whose products read bfloat16 numbers: what is rounded, what is not, and which layers stay plain."""

import pytest
import torch
from torch import nn

from glassformer.kernels.cpu_products import has_products
from glassformer.training import bf16_linear as bf16_linear_module
from glassformer.training.bf16_linear import MIN_ROWS, bf16_linear, bf16_linears, bf16_matmuls
from glassformer.training.lora import AdaptedLinear


@pytest.fixture
def calls(training_kernels, monkeypatch):
    """The number of layers of each call of the kernels, which need a CPU with AMX."""
    if not has_products():
        pytest.skip("needs a CPU with AMX")
    counts, multiply = [], bf16_linear_module.linear_forward

    def counting(x, weights, biases):
        counts.append(len(weights))
        return multiply(x, weights, biases)

    monkeypatch.setattr(bf16_linear_module, "linear_forward", counting)
    return counts


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="needs a CPU with AMX")
def test_products_of_torch_read_bfloat16_numbers():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 96), torch.randn(80, 96)
    right = x.bfloat16().double() @ weight.bfloat16().double().T
    with bf16_matmuls():
        torch.testing.assert_close((x @ weight.T).double(), right, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x @ weight.T, (x.double() @ weight.double().T).float(), rtol=1e-5, atol=1e-4)


def test_the_setting_of_torch_is_restored_after_an_error():
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    with bf16_matmuls():
        with pytest.raises(ZeroDivisionError), bf16_matmuls():
            1 / 0  # noqa: B018
        assert settings.fp32_precision == "bf16"
    assert settings.fp32_precision == before


@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_the_same_rows_are_one_operation_with_their_own_gradients(calls, bias):
    torch.manual_seed(0)
    layers = [nn.Linear(24, n, bias=bias) for n in (24, 8, 40)]
    x = torch.randn(3, 20, 24, requires_grad=True)
    found = bf16_linears(x, layers)
    assert calls == [3]
    sum((y * torch.arange(y.shape[-1])).mean() for y in found).backward()
    gradients = [x.grad, *(parameter.grad for layer in layers for parameter in layer.parameters())]
    x.grad = None
    for layer in layers:
        layer.zero_grad()
    plain = [layer(x) for layer in layers]
    sum((y * torch.arange(y.shape[-1])).mean() for y in plain).backward()
    right = [x.grad, *(parameter.grad for layer in layers for parameter in layer.parameters())]
    for one, other in zip([*found, *gradients], [*plain, *right], strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() < 0.01 * other.norm()
    assert not torch.equal(found[0], plain[0])


def test_inputs_without_gradients_get_none(calls):
    layer = nn.Linear(8, 8)
    bf16_linear(layer, torch.randn(MIN_ROWS, 8)).sum().backward()
    assert calls == [1]
    assert layer.weight.grad is not None


def test_few_rows_other_dtypes_and_frozen_layers_stay_plain(calls):
    layer, x = nn.Linear(8, 8), torch.randn(MIN_ROWS, 8)
    assert torch.equal(bf16_linear(layer, x[1:]), layer(x[1:]))
    with torch.autocast("cpu", torch.bfloat16):
        assert bf16_linear(layer, x).dtype == torch.bfloat16
    assert bf16_linear(layer.double(), x.double()).dtype == torch.float64
    layer = layer.float().requires_grad_(False)
    assert torch.equal(bf16_linear(layer, x), layer(x))
    assert not calls


def test_the_kernels_compute_no_layers_with_adapters(calls):
    layer = nn.Linear(8, 8)
    layers = [layer, AdaptedLinear.__new__(AdaptedLinear)]
    assert bf16_linears(torch.randn(MIN_ROWS, 8), layers) is None
    assert bf16_linears(torch.randn(MIN_ROWS, 8), [layer] * 5) is None
    assert not calls
