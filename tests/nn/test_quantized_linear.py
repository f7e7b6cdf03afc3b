"""Linear layers with int8 weights are close to the float layers that they replace."""

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.nn import quantized_linear
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear
from int8_layers import INT8_LAYERS, use_int8_layer


@pytest.fixture(scope="module", params=INT8_LAYERS)
def int8_linear(request):
    with use_int8_layer(request.param) as layer:
        yield layer


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 35),
    width_in=st.integers(1, 70),
    width_out=st.integers(1, 40),
    bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_error_of_a_layer_is_within_its_rounding(int8_linear, rows, width_in, width_out, bias, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(width_in, width_out, bias=bias)
    x = torch.randn(rows, width_in) * torch.rand(rows, 1) * 10
    found = int8_linear(linear)(x)
    exact = linear(x)
    # Each factor is rounded by at most half a step of its scale. The bound is the sum of these errors.
    steps = x.abs().amax(1, keepdim=True) / 127, linear.weight.abs().amax(1) / 127
    bound = steps[0] / 2 * linear.weight.abs().sum(1) + (x.abs() + steps[0] / 2).sum(1, keepdim=True) * steps[1] / 2
    assert ((found - exact).abs() <= 2.1 * bound + 1e-5).all()  # doubled: some kernels use 7 bits for activations


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 70), width_in=st.integers(1, 200), width_out=st.integers(1, 70), seed=st.integers(0, 2**32))
@example(rows=37, width_in=1100, width_out=33, seed=0)  # 40 KiB of rows: more than one block of the kernel
def test_our_kernel_rounds_once_and_sums_exactly(int8_linear, rows, width_in, width_out, seed):
    if int8_linear is not Int8Linear:
        pytest.skip("our kernel does not run here")
    torch.manual_seed(seed)
    linear, x = nn.Linear(width_in, width_out), torch.randn(rows, width_in) * 10
    top, scales = x.abs().amax(1, keepdim=True), linear.weight.detach().abs().amax(1) / 127
    bytes_in = (x * (torch.full_like(top, 127) / top)).round()
    bytes_of = (linear.weight / scales[:, None]).round()
    exact = (bytes_in.double() @ bytes_of.double().T) * (top / 127) * scales + linear.bias
    torch.testing.assert_close(int8_linear(linear)(x), exact.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(int8_linear(linear, relu=True)(x), exact.float().relu(), rtol=1e-5, atol=1e-5)


def test_nan_and_infinity_stay_in_their_own_row(int8_linear):
    x = torch.randn(40, 20)
    x[3, 19], x[35, 0] = torch.nan, torch.inf
    is_broken = ~torch.isfinite(int8_linear(nn.Linear(20, 9))(x))
    assert is_broken[[3, 35]].all()
    assert is_broken.sum() == 2 * 9
    if int8_linear is Int8Linear:
        assert (~torch.isfinite(int8_linear(nn.Linear(20, 9), relu=True)(x)))[3].all()


def test_weights_may_have_any_memory_layout_and_inputs_of_another_width_are_refused(int8_linear):
    linear = nn.Linear(20, 9)
    layer = int8_linear(linear)
    turned = copy.deepcopy(linear)
    turned.weight = nn.Parameter(linear.weight.detach().T.contiguous().T)
    x = torch.randn(3, 20)
    torch.testing.assert_close(int8_linear(turned)(x), layer(x))
    if int8_linear is Int8Linear:
        with pytest.raises(RuntimeError, match="expected 20"):
            layer(torch.randn(3, 24))


def test_torchs_layer_compiles_without_a_graph_break():
    engines = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if not engines:
        pytest.skip("torch has no int8 products here")
    usual, torch.backends.quantized.engine = torch.backends.quantized.engine, engines[0]
    try:
        layer = copy.deepcopy(TorchInt8Linear(nn.Linear(16, 24)))
        x = torch.randn(2, 3, 16)
        torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))
        assert copy.copy(layer._packed).number != layer._packed.number, "a copy needs another number"
    finally:
        torch.backends.quantized.engine = usual


@pytest.mark.parametrize(
    ("machine", "has_vnni", "allowed", "saturates"),
    [
        ("x86_64", True, None, False),
        ("x86_64", True, "AVX512_VNNI", False),
        ("x86_64", True, "AVX2", True),
        ("x86_64", False, None, True),
        ("aarch64", False, None, False),
    ],
)
def test_where_sums_saturate_activations_have_7_bits(monkeypatch, machine, has_vnni, allowed, saturates):
    monkeypatch.setattr(quantized_linear.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: has_vnni)
    monkeypatch.delenv("FBGEMM_ENABLE_INSTRUCTIONS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("FBGEMM_ENABLE_INSTRUCTIONS", allowed)
    assert quantized_linear._sums_saturate.__wrapped__() == saturates


def test_inputs_may_have_leading_dimensions_and_rows_of_zeros(int8_linear):
    layer = int8_linear(nn.Linear(16, 24))
    assert layer(torch.randn(2, 3, 16)).shape == (2, 3, 24)
    assert torch.isfinite(layer(torch.zeros(4, 16))).all()
