"""Which kernels a device gets, and the fallback to plain torch."""

from unittest.mock import MagicMock

import pytest
import torch

from glassformer.kernels import cpp_library, kernel_registry
from glassformer.kernels.cpp_library import KernelBuildError, UnsupportedCPUError
from glassformer.kernels.kernel_registry import PLAIN, cpp_kernels, kernels_for
from glassformer.nn import quantized_linear


def test_a_cpu_gets_plain_torch_by_default():
    assert kernels_for(torch.device("cpu")) is PLAIN


def test_a_failed_build_is_tried_once_and_warned_of_once(no_kernels_loaded, monkeypatch, caplog):
    attempts = []

    def fail():
        attempts.append(1)
        raise KernelBuildError("by hand")

    monkeypatch.setattr(kernel_registry, "load_cpp_library", fail)
    for _ in range(3):
        assert kernel_registry.kernels_for(torch.device("cpu"), compiled=True) is kernel_registry.PLAIN
    assert len(attempts) == 1
    assert [record.message for record in caplog.records] == ["torch's own kernels are used, which are slower: by hand"]


def test_building_the_library_does_not_change_whether_it_was_built(no_kernels_loaded, monkeypatch):
    built = []
    monkeypatch.setattr(kernel_registry, "is_library_built", lambda: bool(built))
    monkeypatch.setattr(kernel_registry, "load_cpp_library", lambda: built.append(1) or MagicMock())
    cpp_kernels()
    assert built
    assert not kernel_registry.was_library_built()


def test_a_library_that_cannot_be_built_was_not_built(no_kernels_loaded, monkeypatch):
    def fail():
        raise KernelBuildError("by hand")

    monkeypatch.setattr(kernel_registry, "is_library_built", fail)
    assert not kernel_registry.was_library_built()


def test_an_unsupported_cpu_falls_back_without_a_warning(no_kernels_loaded, monkeypatch, caplog):
    def fail():
        raise UnsupportedCPUError("by hand")

    monkeypatch.setattr(cpp_library, "wanted_sets", fail)
    if not quantized_linear.torch_int8_engine():
        pytest.skip("torch has no int8 products here")
    assert quantized_linear.int8_layer_class() is quantized_linear.TorchInt8Linear
    assert not caplog.records
