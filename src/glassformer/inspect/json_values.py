"""Numbers and arrays of an explanation as JSON values: short enough for a page, exact to five digits."""

import base64
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

DIGITS = 6
"""Significant digits of single numbers."""
STEPS = 32767
"""Steps from 0 to the largest absolute value of a packed array."""


def number(value: float | Tensor) -> float | None:
    """Return a number with six significant digits; None for infinity and NaN, which JSON does not have."""
    value = float(value)
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def numbers(values: Tensor) -> list[Any]:
    """Return a tensor as nested lists of numbers with six significant digits."""
    return [_numbers(value) for value in values.detach().cpu().tolist()]


def _numbers(value: Any) -> Any:
    return [_numbers(one) for one in value] if isinstance(value, list) else number(value)


def pack(values: Tensor) -> dict[str, Any]:
    """Return a tensor as base64 of 16-bit integers with a common scale: value = integer * scale.

    The error is at most 1.6e-5 of the largest absolute value. float16 has the same size, but near 1 its error is 2e-4.
    """
    array = values.detach().to("cpu", torch.float64).numpy()
    largest = float(np.abs(array).max()) if array.size else 0.0
    if not math.isfinite(largest):
        raise FloatingPointError("an activation is NaN or infinite: check the model's weights")
    scale = largest / STEPS or 1.0
    data = np.rint(array / scale).astype("<i2")
    text = base64.b64encode(data.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "data": text, "dtype": "int16", "scale": scale}


def unpack(packed: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the array of `pack`."""
    data = np.frombuffer(base64.b64decode(packed["data"]), dtype="<i2")
    return data.reshape(packed["shape"]).astype(np.float64) * float(packed["scale"])
