"""A loaded model is put where it is asked to be, or the request is refused with what to do instead."""

import pytest
import torch

from glassformer.models import build_model, preset
from glassformer.nn.groupwise_linear import GroupwiseLinear
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear
from glassformer.runtime.prepare_model import choose_preparation, prepare_model, read_dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_is_moved_to_its_dtype(dtype):
    model = build_model(preset("tiny-gpt2")).train()
    found = prepare_model(model, device="cpu", dtype=dtype)
    assert found is model
    assert not found.training
    assert {p.dtype for p in found.parameters()} == {getattr(torch, dtype)}


def test_auto_is_the_cpu_in_float32_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = prepare_model(build_model(preset("tiny-gpt2")).double())
    assert {(p.device.type, p.dtype) for p in found.parameters()} == {("cpu", torch.float32)}


@pytest.mark.parametrize(
    ("device", "dtype", "stored", "expected"),
    [
        ("cuda", "auto", "BF16", torch.bfloat16),
        ("cuda", "auto", "F16", torch.float16),
        ("cuda", "auto", "F32", torch.float32),
        ("cuda", "auto", "Q4_K", torch.float32),
        ("cuda", "float32", "BF16", torch.float32),
        ("cuda", torch.float16, "BF16", torch.float16),
        ("cpu", "auto", "BF16", torch.float32),
    ],
)
def test_a_gpu_computes_in_the_numbers_of_the_file(monkeypatch, device, dtype, stored, expected):
    monkeypatch.setattr("glassformer.runtime.prepare_model.choose_device", lambda name: torch.device(device))
    assert choose_preparation(dtype=dtype, stored_format=lambda: stored).dtype == expected


def test_int8_is_a_fused_copy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = build_model(preset("tiny-llama"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = prepare_model(model, quantize="int8")
    assert any(isinstance(module, Int8Linear | TorchInt8Linear) for module in found.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_int4_is_a_fused_copy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = build_model(preset("tiny-llama"))
    found = prepare_model(model, quantize="int4")
    assert isinstance(found.decoder.layers[0].self_attn.qkv_proj, GroupwiseLinear)
    assert type(model.decoder.layers[0].self_attn.q_proj) is torch.nn.Linear


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int3"}, "quantize='int3': expected one of none, int8, int4"),
        ({"dtype": torch.int8}, "dtype=torch.int8: expected a floating-point dtype"),
        ({"dtype": "float31"}, "dtype='float31': expected one of auto, float32, bfloat16, float16"),
        ({"quantize": "int8", "dtype": "float16"}, "quantize='int8' with dtype=float16: expected one of them"),
        ({"device": "gpu"}, "device='gpu' is not a torch device"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prepare_model(build_model(preset("tiny-gpt2")), **options)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantized_weights_on_a_gpu_are_refused(monkeypatch, weights):
    monkeypatch.setattr("glassformer.runtime.prepare_model.choose_device", lambda name: torch.device("cuda"))
    with pytest.raises(ValueError, match=f"quantize='{weights}' with device='cuda': {weights} runs on a CPU"):
        prepare_model(build_model(preset("tiny-gpt2")), device="cuda", quantize=weights)


def test_a_torch_dtype_is_taken_as_it_is():
    assert read_dtype(torch.float64) == torch.float64
    assert read_dtype("auto") == torch.float32
