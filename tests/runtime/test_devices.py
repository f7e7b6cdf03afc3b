"""Devices by name: what can compute here, and what is refused with a hint."""

import pytest
import torch

from glassformer.runtime.devices import choose_device

CPU = torch.device("cpu")


def test_a_device_that_cannot_compute_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    for name, message in (
        ("gpu", "device='gpu' is not a torch device: expected auto, cpu or cuda"),
        ("cuda", "device='cuda': no CUDA device is available"),
        ("meta", "device='meta' cannot compute here"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            choose_device(name)
        assert caught.value.for_command_line == str(caught.value).replace(f"device='{name}'", f"--device {name}")


def test_cuda_devices_are_counted_from_0(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="there are 2 CUDA devices, counted from 0"):
        choose_device("cuda:2")
