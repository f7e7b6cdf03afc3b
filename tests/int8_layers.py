"""Choose which int8 linear layer a test uses: ours or torch's."""

import platform
from contextlib import contextmanager

import pytest
import torch

from glassformer.kernels.cpp_library import X86, KernelBuildError
from glassformer.nn.quantized_linear import Int8Linear, TorchInt8Linear, int8_layer_class
from glassformer.runtime import quantized_model

INT8_LAYERS = ["ours", "torch's"]


@contextmanager
def use_int8_layer(name):
    """Make quantized models use this layer inside the block, and yield its class. Skip the test if it cannot run here.

    torch's layer is the fallback of an x86 CPU on which ours cannot be built.
    """
    if name == "ours":
        try:
            found = int8_layer_class()
        except KernelBuildError as error:
            pytest.skip(str(error))
        if found is not Int8Linear:
            pytest.skip("our kernel does not run here")
        yield found
        return
    usual, supported = torch.backends.quantized.engine, torch.backends.quantized.supported_engines
    engine = usual if platform.machine() in X86 else "qnnpack"
    if engine not in supported or engine == "none":
        pytest.skip("torch has no int8 products here")
    torch.backends.quantized.engine = engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_model, "int8_layer_class", lambda: TorchInt8Linear)
        yield TorchInt8Linear
    torch.backends.quantized.engine = usual
