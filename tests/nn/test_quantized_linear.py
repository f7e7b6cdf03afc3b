"""Linear layers with int8 weights are close to the float layers that they replace."""

import copy
import os
import pickle
import platform
import subprocess
import sys
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.decoding import GenerationConfig, generate
from glassformer.kernels.cpp_library import X86
from glassformer.nn import quantized_linear
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear
from glassformer.runtime.quantized_model import quantize
from int8_layers import INT8_LAYERS, use_int8_layer
from recording import BEGIN, DECODERS, END, PAIR, make


@pytest.fixture(scope="module", params=INT8_LAYERS)
def int8_linear(request):
    with use_int8_layer(request.param) as layer:
        yield layer


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # in torch itself
@pytest.mark.parametrize("n_bytes", [1, 2])
def test_an_unpickled_layer_computes_the_same(int8_linear, n_bytes):
    torch.manual_seed(0)
    layer, x = int8_linear(nn.Linear(40, 7)), torch.randn(3, 40)
    layer.set_activation_bytes(n_bytes)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


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


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), width_in=st.integers(1, 150), width_out=st.integers(1, 40), seed=st.integers(0, 2**32))
@example(rows=300, width_in=40, width_out=9, seed=0)  # more than one block of rows
def test_two_bytes_leave_the_rounding_of_the_weights_alone(int8_linear, rows, width_in, width_out, seed):
    torch.manual_seed(seed)
    linear, x = nn.Linear(width_in, width_out), torch.randn(rows, width_in)
    x[:, 0] *= 1000  # an outlier, so that one byte has no level left for the other numbers
    layer = int8_linear(linear)
    layer.set_activation_bytes(2)
    scales = linear.weight.detach().abs().amax(1, keepdim=True).double() / 127
    weight = (linear.weight.detach() / scales).round() * scales
    exact = x.double() @ weight.T + linear.bias
    step = x.abs().amax(1, keepdim=True) / (63 * 126)  # some kernels use 7 bits
    assert ((layer(x) - exact).abs() <= step / 2 * weight.abs().sum(1) * 1.01 + 1e-5 * (1 + x.abs().amax())).all()


def test_two_bytes_are_the_sum_of_two_products(int8_linear):
    linear, x = nn.Linear(70, 33), torch.randn(9, 70) * 10
    layer = int8_linear(linear)
    top = x.abs().amax(1, keepdim=True)
    if int8_linear is Int8Linear:
        left = x - (x * (torch.full_like(top, 127) / top)).round() * (top / 127)
        expected = layer(x) + layer(left) - linear.bias
        layer.set_activation_bytes(2)
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
        rectified = Int8Linear(linear, relu=True)
        rectified.set_activation_bytes(2)
        torch.testing.assert_close(rectified(x), expected.relu(), rtol=1e-5, atol=1e-5)
    layer.set_activation_bytes(2)
    assert layer(torch.zeros(2, 70)).equal(linear.bias.expand(2, 33))
    assert layer(torch.full((1, 70), 1e-40)).isfinite().all()
    assert layer(torch.zeros(0, 70)).shape == (0, 33)
    x[3, 69], x[7, 0] = torch.nan, torch.inf
    is_broken = ~torch.isfinite(layer(x))
    assert is_broken[[3, 7]].all()
    assert is_broken.sum() == 2 * 33


@pytest.mark.parametrize("n_bytes", [1, 2])
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(2, 40), width_in=st.integers(1, 150), width_out=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_a_row_gives_the_same_bits_alone_and_in_any_batch(int8_linear, n_bytes, rows, width_in, width_out, seed):
    torch.manual_seed(seed)
    layer = int8_linear(nn.Linear(width_in, width_out))
    layer.set_activation_bytes(n_bytes)
    x = torch.randn(rows, width_in) * 10 ** torch.empty(rows, 1).uniform_(-6, 6)
    x[0] = x[0].abs()  # rows of one sign: the batch's lowest and highest number then differ in magnitude
    x[1] = -x[1].abs()
    together, order = layer(x), torch.randperm(rows)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), together)
    assert torch.equal(layer(x[order]), together[order])
    assert torch.equal(layer(x[: rows // 2]), together[: rows // 2])


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 40), width_in=st.integers(1, 150), width_out=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_sums_of_the_largest_numbers_are_exact(int8_linear, rows, width_in, width_out, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(width_in, width_out, bias=False)
    linear.weight.data = torch.randint(0, 8, (width_out, width_in)).bool().float() * 254 - 127
    x = torch.randint(0, 8, (rows, width_in)).bool().float() * 2 - 1  # one row's largest magnitude: 127 or 63 levels
    torch.testing.assert_close(int8_linear(linear)(x), linear(x), rtol=1e-6, atol=0)


def test_nan_and_infinity_stay_in_their_own_row(int8_linear):
    x = torch.randn(40, 20)
    x[3, 19], x[35, 0] = torch.nan, torch.inf
    is_broken = ~torch.isfinite(int8_linear(nn.Linear(20, 9))(x))
    assert is_broken[[3, 35]].all()
    assert is_broken.sum() == 2 * 9
    if int8_linear is Int8Linear:
        assert (~torch.isfinite(int8_linear(nn.Linear(20, 9), relu=True)(x)))[3].all()


def test_nan_is_found_in_every_place_of_a_row(int8_linear):
    layer, x = int8_linear(nn.Linear(21, 3)), torch.randn(21, 21)
    x.fill_diagonal_(torch.nan)
    assert layer(x).isnan().all()


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


@pytest.mark.parametrize("name", ["rotary, grouped", "pair"])
def test_a_text_gets_the_same_tokens_alone_and_in_a_batch(int8_linear, name):
    pair = name == "pair"
    model = quantize(make(PAIR if pair else DECODERS[name]).float())
    texts = [[3, 4, 5], [6], [7, 8, 9, 10], [4, 4, 4, 4, 4, 4]]
    config = GenerationConfig(max_new_tokens=8)
    write = partial(generate, model, config=config, begin=BEGIN if pair else None, end=END)
    assert [found[0].tokens for found in write(texts)] == [write([text])[0][0].tokens for text in texts]


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


def test_an_engine_whose_sums_are_wrong_is_given_7_bits_or_not_used(monkeypatch):
    exact = {"saturating": [63], "right": [127, 63], "broken": []}
    monkeypatch.setattr(quantized_linear, "_sums_saturate", lambda: False)
    monkeypatch.setattr(quantized_linear, "_is_exact", lambda engine, highest: highest in exact[engine])
    assert [quantized_linear._highest_level.__wrapped__(engine) for engine in exact] == [63, 127, 0]
    monkeypatch.setattr(quantized_linear, "_sums_saturate", lambda: True)
    assert quantized_linear._highest_level.__wrapped__("right") == 63


@pytest.mark.skipif(platform.machine() not in X86, reason="FBGEMM is an x86 library")
@pytest.mark.parametrize("instructions", ["AVX2", pytest.param("AVX512", marks=pytest.mark.full)])
def test_torchs_layer_is_exact_where_fbgemm_saturates(instructions):
    environment = os.environ | {"FBGEMM_ENABLE_INSTRUCTIONS": instructions}
    code = """
import torch
from torch import nn
from glassformer.nn.quantized_linear import TorchInt8Linear
for engine in ("fbgemm", "x86"):
    linear = nn.Linear(300, 40, bias=False)
    linear.weight.data = torch.randint(0, 8, (40, 300)).bool().float() * 254 - 127
    x = torch.randint(0, 8, (37, 300)).bool().float() * 2 - 1
    layer = TorchInt8Linear(linear, engine=engine)
    torch.testing.assert_close(layer(x), linear(x), rtol=1e-6, atol=0)
    x *= 10 ** torch.empty(37, 1).uniform_(-6, 6)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), layer(x))
"""
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_inputs_may_have_leading_dimensions_and_rows_of_zeros(int8_linear):
    layer = int8_linear(nn.Linear(16, 24))
    assert layer(torch.randn(2, 3, 16)).shape == (2, 3, 24)
    assert torch.isfinite(layer(torch.zeros(4, 16))).all()
