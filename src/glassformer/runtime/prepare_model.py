"""Prepare a loaded model for use: on its device, in its dtype, and with 8-bit or 4-bit weights if asked for.

| asked for        | device "auto"              | dtype "auto" |
|------------------|----------------------------|--------------|
| nothing          | a GPU if there is one      | float32      |
| quantize="int8"  | the CPU: int8 runs nowhere else | 8-bit weights; activations and norms in float32 |
| quantize="int4"  | the CPU                    | 4-bit weights; activations and norms in float32 |

`choose_runner.py` then decides how each of its decoding steps is computed.
"""

from typing import Literal, TypeVar, get_args

import torch

from glassformer.models import Model
from glassformer.runtime.devices import choose_device
from glassformer.runtime.packed_model import pack
from glassformer.runtime.quantized_model import quantize as quantize_model

AnyModel = TypeVar("AnyModel", bound=Model)
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8", "int4"]
"""How the weights of linear layers are stored: "none" keeps the dtype."""


def prepare_model(
    model: AnyModel,
    *,
    device: torch.device | str = "auto",
    dtype: torch.dtype | DtypeName = "auto",
    quantize: Quantization = "none",
) -> AnyModel:
    """Return the model in eval mode, on this device, in this dtype, and quantized if `quantize` is not "none".

    It is the same object, changed in place; but a quantized model is a copy, whose projections are fused (`pack`).
    """
    if quantize not in get_args(Quantization):
        raise ValueError(f"quantize={quantize!r}: expected one of {', '.join(get_args(Quantization))}")
    wanted = read_dtype(dtype)
    if quantize == "none":
        return model.to(choose_device(str(device)), wanted).eval()
    if device != "auto" and choose_device(str(device)).type != "cpu":
        raise ValueError(
            f"quantize={quantize!r} with device={str(device)!r}: {quantize} runs on a CPU, expected cpu or auto"
        )
    if wanted != torch.float32:
        raise ValueError(f"quantize={quantize!r} with dtype={dtype}: expected one of them")
    return quantize_model(pack(model), quantize)


def read_dtype(dtype: torch.dtype | DtypeName) -> torch.dtype:
    """Return the torch dtype of this name; "auto" is float32."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in get_args(DtypeName):
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(get_args(DtypeName))}")
    found: torch.dtype = getattr(torch, "float32" if dtype == "auto" else dtype)
    return found
