"""The device and precision that a run computes with."""

import torch

from glassformer.training.lora import LowRank
from glassformer.training.precision import choose_precision


def test_automatic_precision_ignores_the_width_of_adapters(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    model = torch.nn.ModuleList(torch.nn.Linear(400, 400) for _ in range(2))
    for linear in model:
        torch.nn.utils.parametrize.register_parametrization(linear, "weight", LowRank(linear.weight, 2, 1.0))
    assert choose_precision("auto", torch.device("cpu"), model) == "bf16"
