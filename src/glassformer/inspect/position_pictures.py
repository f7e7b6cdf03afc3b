"""A picture of a model's own positions: their vectors, angles or biases, with an explanation."""

from typing import Any

import torch
from torch import Tensor, nn

from glassformer.inspect.json_values import pack
from glassformer.inspect.lens import embeddings_of
from glassformer.inspect.pipeline_text import AnyModel
from glassformer.nn import Alibi, RelativeBias, Stack

N_POSITIONS = 64
"""How many positions are drawn."""
N_FEATURES = 256
"""How many features of a vector are drawn, evenly spread over a wider one."""

EXPLANATIONS = {
    "sinusoidal": (
        "Each position has a fixed vector of sines and cosines, which is added to the token's vector. The left "
        "features change quickly from position to position, the right ones slowly, like the digits of a clock."
    ),
    "learned": (
        "Each position has a learned vector, which is added to the token's vector. Neighboring positions that "
        "play the same role end up with similar rows."
    ),
    "rotary": (
        "Each pair of features of a query or key is rotated by an angle that grows with the position; the picture "
        "shows its cosine. The product of a query and a key then depends on their distance only."
    ),
    "relative": (
        "A learned number for each head and range of distances is added to the attention scores. Bright cells "
        "make a head look at tokens of that distance."
    ),
    "alibi": (
        "A penalty that grows linearly with the distance is subtracted from the attention scores. Each head has "
        "its own slope: some look far, others only at their neighbors."
    ),
    "disentangled": (
        "Each range of distances has a learned vector. Queries are compared with the vectors of distances and "
        "keys with them too, in addition to the comparison of queries with keys."
    ),
}


def describe_positions(model: AnyModel) -> dict[str, Any] | None:
    """Return the picture of a model's positions as JSON values; None for a model without positions."""
    kind = model.config.positions
    if kind == "none":
        return None
    stack = getattr(model, "encoder", None)
    name = "encoder" if isinstance(stack, Stack) else "decoder"
    stack = getattr(model, name)
    length = min(N_POSITIONS, model.config.max_len or N_POSITIONS)
    positions = torch.arange(length, device=next(model.parameters()).device)[None]
    if kind in ("sinusoidal", "learned"):
        module = embeddings_of(model, name).positions
        assert module is not None
        values, axes = module(positions, torch.float32).expand(1, length, -1)[0], ["position", "feature"]
    elif kind == "rotary":
        values, axes = stack.rotary(positions).cos[0, 0], ["position", "pair of features"]
    elif kind == "disentangled":
        values, axes = stack.relative(positions, positions).table, ["range of distances", "feature"]
    else:
        values, axes = _biases(stack.score_bias, length), ["head", "distance (key minus query)"]
    columns = values.shape[1]
    step = -(-columns // N_FEATURES)
    picture = {
        "kind": kind,
        "picture": pack(values.float()[:, ::step]),
        "axes": axes,
        "explanation": EXPLANATIONS[kind],
        "step": step,
    }
    return {**picture, "first_column": -(length - 1)} if axes[0] == "head" else picture


def _biases(module: nn.Module, length: int) -> Tensor:
    """Return the bias of each head for the distances from -(length - 1) to length - 1."""
    first = module[0] if isinstance(module, nn.ModuleList) else module
    assert isinstance(first, RelativeBias | Alibi)
    device = next(iter(first.parameters()), torch.empty(0)).device
    middle = torch.tensor([[length - 1]], device=device)
    bias: Tensor = first(middle, torch.arange(2 * length - 1, device=device)[None])
    return bias[0, :, 0]  # (H, distances)
