"""The device and precision that a run computes with."""

import torch

from glassformer.training.lora import LowRank
from glassformer.training.precision import WIDE, autocast, choose_precision, uses_bf16_matmuls

CPU = torch.device("cpu")


def test_automatic_precision_ignores_the_width_of_adapters(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    model = torch.nn.ModuleList(torch.nn.Linear(400, 400) for _ in range(2))
    for _ in range(3):
        model.append(LowRank(400, 400, 2, 1.0, like=torch.empty(0)))
    assert choose_precision("auto", torch.device("cpu"), model) == "bf16"


def test_automatic_precision_is_bf16_only_for_wide_models_with_hardware_for_it(monkeypatch):
    wide, narrow = torch.nn.Linear(WIDE, WIDE), torch.nn.Linear(WIDE, WIDE - 1)
    for has_hardware, model, expected in ((True, wide, "bf16"), (True, narrow, "fp32"), (False, wide, "fp32")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has_hardware=has_hardware: has_hardware)
        assert choose_precision("auto", CPU, model) == expected
    assert choose_precision("fp16", CPU, narrow) == "fp16"


def test_autocast_computes_products_in_the_chosen_precision(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    linear, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with autocast(precision, CPU):
            assert linear(x).dtype == dtype
    assert linear.weight.dtype == torch.float32


def test_on_a_cpu_with_amx_only_products_read_bf16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    linear, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with autocast("bf16", CPU):
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert linear(x).dtype == torch.float32
    with autocast("fp32", CPU):
        assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"
    found = [uses_bf16_matmuls(precision, CPU) for precision in ("bf16", "fp32", "fp16")]
    assert found == [True, False, False]
    assert not uses_bf16_matmuls("bf16", torch.device("cuda"))
