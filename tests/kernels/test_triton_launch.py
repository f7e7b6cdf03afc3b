"""Triton kernels are launched early on GPUs that can do so, and never on a CPU."""

from contextlib import nullcontext

import torch

from glassformer.kernels.triton_launch import early_launch, launches_early, on_device


def test_only_new_gpus_launch_kernels_early(monkeypatch):
    launches_early.cache_clear()
    capability = {}
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability[device])
    for index, version in enumerate([(8, 0), (8, 9), (9, 0), (10, 0)]):
        device = torch.device("cuda", index)
        capability[device] = version
        assert early_launch(device) == ({"launch_pdl": True} if version >= (9, 0) else {})
    assert early_launch(torch.device("cpu")) == {}
    launches_early.cache_clear()


def test_a_cpu_needs_no_current_device():
    assert isinstance(on_device(torch.device("cpu")), nullcontext)
