"""Prepare a loaded model for use: on its device, in its dtype, and with 8-bit weights if asked for.

| asked for        | device "auto"              | dtype "auto" |
|------------------|----------------------------|--------------|
| nothing          | a GPU if there is one      | float32      |
| quantize="int8"  | the CPU: int8 runs nowhere else | 8-bit weights; activations and norms in float32 |

`choose_runner.py` then decides how each of its decoding steps is computed.
"""

from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import torch
from torch import nn

from glassformer.models import Model
from glassformer.models.heads import LanguageModelHead
from glassformer.nn.layers import Layer
from glassformer.runtime.devices import choose_device
from glassformer.runtime.packed_model import fuse_projections, pack
from glassformer.runtime.quantized_model import quantize as to_int8
from glassformer.runtime.quantized_model import quantize_linears

AnyModel = TypeVar("AnyModel", bound=Model)
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8"]
"""How the weights of linear layers are stored: "none" keeps the dtype."""


@dataclass(frozen=True)
class Preparation:
    """How a model is prepared for use: the decision of `choose_preparation`.

    A model that is in memory is prepared as a whole (`apply`). One that is being loaded is prepared module by module
    (`prepare_module`), so that its float weights and its int8 weights are never in memory together.
    """

    device: torch.device
    dtype: torch.dtype
    """The dtype of the parameters. In an int8 model it is that of embeddings, norms and activations."""
    quantize: Quantization

    def prepare_module(self, module: nn.Module) -> None:
        """Prepare a module of a model that is being loaded, in place, when all its parameters have been read.

        Layers and the output layer are prepared one by one, and then what is left of the whole model.
        """
        if isinstance(module, Layer | LanguageModelHead | Model) and self.quantize == "int8":
            fuse_projections(module)
            quantize_linears(module)

    def finish(self, model: AnyModel) -> AnyModel:
        """Return a loaded model whose modules were given to `prepare_module`, on its device."""
        return model.to(self.device) if self.quantize == "none" else model

    def apply(self, model: AnyModel) -> AnyModel:
        """Prepare a whole model: in place, but an int8 model is a copy whose projections are fused (`pack`)."""
        if self.quantize == "none":
            return model.to(self.device, self.dtype).eval()
        return to_int8(pack(model))


def choose_preparation(
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | DtypeName = "auto",
    quantize: Quantization = "none",
) -> Preparation:
    """Return how a model is prepared for these wishes, by the table in the module's docstring.

    Raises ValueError for wishes that cannot be combined, such as int8 weights on a GPU.
    """
    if quantize not in get_args(Quantization):
        raise ValueError(f"quantize={quantize!r}: expected one of {', '.join(get_args(Quantization))}")
    wanted = read_dtype(dtype)
    if quantize == "none":
        return Preparation(choose_device(str(device)), wanted, quantize)
    if device != "auto" and choose_device(str(device)).type != "cpu":
        raise ValueError(f"quantize={quantize!r} with device={str(device)!r}: int8 runs on a CPU, expected cpu or auto")
    if wanted != torch.float32:
        raise ValueError(f"quantize={quantize!r} with dtype={dtype}: expected one of them")
    return Preparation(torch.device("cpu"), wanted, quantize)


def prepare_model(
    model: AnyModel,
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | DtypeName = "auto",
    quantize: Quantization = "none",
) -> AnyModel:
    """Return the model in eval mode, on this device, in this dtype, and with int8 weights if `quantize` is "int8".

    It is the same object, changed in place; but with int8 weights it is a copy, whose projections are fused (`pack`).
    """
    return choose_preparation(device=device, dtype=dtype, quantize=quantize).apply(model)


def read_dtype(dtype: torch.dtype | DtypeName) -> torch.dtype:
    """Return the torch dtype of this name; "auto" is float32."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in get_args(DtypeName):
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(get_args(DtypeName))}")
    found: torch.dtype = getattr(torch, "float32" if dtype == "auto" else dtype)
    return found
