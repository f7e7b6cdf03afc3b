"""Int8 models stay close to the float model: each layer, the logits, and the generated texts."""

import copy
import platform

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from glassformer.data.corpora.toy import PairTaskData
from glassformer.decoding import GenerationConfig, generate
from glassformer.kernels.cpp_library import X86, KernelBuildError
from glassformer.models import build_model, preset
from glassformer.nn import quantized_linear
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear
from glassformer.runtime import int8
from glassformer.runtime.int8 import _choose_layer, quantize
from glassformer.text.tokenizer import BEGIN, END, PAD
from glassformer.training import fit, label_smoothed_cross_entropy


@pytest.fixture(scope="module", params=["ours", "torch's"])
def int8_linear(request):
    """The layer class of our kernel, then of torch's. Skips a kernel that does not run here."""
    if request.param == "ours":
        try:
            found = _choose_layer()
        except KernelBuildError as error:
            pytest.skip(str(error))
        if found is not Int8Linear:
            pytest.skip("our kernel does not run here")
        yield found
        return
    previous, supported = torch.backends.quantized.engine, torch.backends.quantized.supported_engines
    engine = previous if platform.machine() in X86 else "qnnpack"
    if engine not in supported or engine == "none":
        pytest.skip("torch has no int8 products here")
    torch.backends.quantized.engine = engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(int8, "_choose_layer", lambda: TorchInt8Linear)
        yield TorchInt8Linear
    torch.backends.quantized.engine = previous


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
    # Each factor is off by at most half a quantization step; the bound is the sum of these errors.
    steps = x.abs().amax(1, keepdim=True) / 127, linear.weight.abs().amax(1) / 127
    bound = steps[0] / 2 * linear.weight.abs().sum(1) + (x.abs() + steps[0] / 2).sum(1, keepdim=True) * steps[1] / 2
    # Twice the bound, because some kernels use 7 bits for activations.
    assert ((found - exact).abs() <= 2.1 * bound + 1e-5).all()


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 70), width_in=st.integers(1, 200), width_out=st.integers(1, 70), seed=st.integers(0, 2**32))
@example(rows=37, width_in=1100, width_out=33, seed=0)  # more rows than one block of the kernel
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


def test_nan_and_infinity_are_passed_on(int8_linear):
    x = torch.randn(40, 20)
    x[3, 19], x[35, 0] = torch.nan, torch.inf
    is_broken = ~torch.isfinite(int8_linear(nn.Linear(20, 9))(x))
    assert is_broken[[3, 35]].all()
    assert is_broken.sum() == 2 * 9
    if int8_linear is Int8Linear:
        assert (~torch.isfinite(int8_linear(nn.Linear(20, 9), relu=True)(x)))[3].all()


def test_weights_may_have_any_memory_layout_but_inputs_must_fit(int8_linear):
    linear = nn.Linear(20, 9)
    layer = int8_linear(linear)
    turned = copy.deepcopy(linear)
    turned.weight = nn.Parameter(linear.weight.detach().T.contiguous().T)
    x = torch.randn(3, 20)
    torch.testing.assert_close(int8_linear(turned)(x), layer(x))
    if int8_linear is Int8Linear:
        with pytest.raises(RuntimeError, match="expected 20"):
            layer(torch.randn(3, 24))


def test_quantize_does_not_change_the_original_model(int8_linear):
    layer = int8_linear(nn.Linear(16, 24))
    assert layer(torch.randn(2, 3, 16)).shape == (2, 3, 24)
    assert torch.isfinite(layer(torch.zeros(4, 16))).all()
    model = build_model(preset("tiny-marian"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quantized = quantize(model)
    assert not any(type(module) is nn.Linear for module in quantized.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_relu_is_fused_into_the_layer_before_it(int8_linear):
    if int8_linear is not Int8Linear:
        pytest.skip("our kernel does not run here")
    for activation, gated in (("relu", False), ("relu", True), ("gelu", False)):
        model = build_model(preset("tiny-marian", activation=activation, gated=gated)).eval()
        network, joined = (m.get_submodule("decoder.layers.0.ffn") for m in (model, quantize(model)))
        assert (joined.act is not network.act) == (activation == "relu" and not gated)
        x = torch.randn(3, 5, network.d_model)
        torch.testing.assert_close(joined(x), network(x), rtol=0, atol=0.05 * network(x).abs().max().item())


def test_torchs_int8_layer_can_be_compiled():
    engines = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if not engines:
        pytest.skip("torch has no int8 products here")
    previous, torch.backends.quantized.engine = torch.backends.quantized.engine, engines[0]
    try:
        layer = copy.deepcopy(TorchInt8Linear(nn.Linear(16, 24)))
        x = torch.randn(2, 3, 16)
        torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))
        assert copy.copy(layer._packed).number != layer._packed.number, (
            "a copy of the packed weights has a number of its own"
        )
    finally:
        torch.backends.quantized.engine = previous


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
def test_activations_have_7_bits_where_sums_saturate(monkeypatch, machine, has_vnni, allowed, saturates):
    monkeypatch.setattr(quantized_linear.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: has_vnni)
    monkeypatch.delenv("FBGEMM_ENABLE_INSTRUCTIONS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("FBGEMM_ENABLE_INSTRUCTIONS", allowed)
    assert quantized_linear._sums_saturate.__wrapped__() == saturates


@pytest.mark.parametrize("name", ["tiny-transformer-base", "tiny-llama", "tiny-t5-small", "tiny-bert-base"])
def test_the_logits_of_a_quantized_model_stay_close(int8_linear, name):
    torch.manual_seed(0)
    model = build_model(preset(name)).eval()
    inputs = [torch.randint(4, 40, (3, 9)) for _ in range(2 if model.kind == "encoder_decoder" else 1)]
    with torch.inference_mode():
        exact, found = model(*inputs), quantize(model)(*inputs)
    assert (found - exact).norm() < 0.05 * exact.norm()


def test_a_trained_model_gives_the_same_texts_in_int8(int8_linear):
    torch.manual_seed(0)
    size = {"d_model": 32, "n_heads": 4, "d_ff": 64, "dropout": 0.0, "embedding_dropout": 0.0}
    model = build_model(preset("tiny-transformer-base", **size, vocab_size=14, norm_placement="pre"))

    def loss(batch):
        logits = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask)
        return label_smoothed_cross_entropy(logits, batch.target_out, ignore=PAD)

    data = PairTaskData("copy", 10, min_length=2, max_length=6, seed=0)
    fit(model, data.batches(), loss, steps=200, lr=7e-3)
    sources = [[token for token in row if token != PAD] for row in next(data.batches()).source.tolist()]
    config = GenerationConfig(max_new_tokens=8)
    texts = [
        [written[0].tokens for written in generate(m, sources, config, begin=BEGIN, end=END)]
        for m in (model, quantize(model))
    ]
    same = sum(a == b for a, b in zip(*texts, strict=True))
    assert same >= 0.98 * len(sources)
