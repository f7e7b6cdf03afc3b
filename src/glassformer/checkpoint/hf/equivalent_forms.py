"""Rewrite a model before it is saved as an HF family: other settings and tensors, the same outputs.

A family may lack a setting but support an equivalent one. In exact arithmetic the rewritten model has the same outputs;
in float32 they may differ by rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glassformer.models import ModelConfig

if TYPE_CHECKING:  # `glassformer info` imports this without torch
    from torch import Tensor

    Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rewrite:
    """Two functions that rewrite a model: one changes its config, the other its tensors.

    `parameters` is called only if `config` returns a changed config.
    """

    config: Callable[[ModelConfig], ModelConfig]
    """Return the equivalent config, or the same config if nothing changes."""
    parameters: Callable[[ModelConfig, Parameters], dict[str, Tensor]]
    """Return the equivalent model's tensors, given the config before the change and its tensors."""


def _without_scale(config: ModelConfig) -> ModelConfig:
    if not config.scale_embeddings:
        return config
    is_copied = config.tie == "output" and not _keeps_tie(config)
    return replace(config, scale_embeddings=False, tie="none" if is_copied else config.tie)


def _keeps_tie(config: ModelConfig) -> bool:
    """Return whether the output can stay tied to the embedding table when the table is multiplied by its scale.

    It can if the final norm directly precedes the output: dividing the norm's weight and bias by the scale then keeps
    the logits the same.
    """
    is_one_stack = config.kind != "encoder_decoder"
    return config.ties_output and is_one_stack and config.has_final_norm and not config.head_transform


def _fold_scale(config: ModelConfig, parameters: Parameters) -> dict[str, Tensor]:
    table, scale = parameters["embeddings.tokens.weight"], math.sqrt(config.table_width)
    changed = {"embeddings.tokens.weight": table * scale}
    if _keeps_tie(config):
        norms = parameters.keys() & {f"{config.kind}.norm.weight", f"{config.kind}.norm.bias"}
        changed |= {name: parameters[name] / scale for name in norms}
    elif config.ties_output:
        changed["head.out_proj.weight"] = table
    return {**parameters, **changed}


FOLD_EMBEDDING_SCALE = Rewrite(_without_scale, _fold_scale)
"""Multiply the embedding table by its scale, for families without `scale_embeddings`.

A tied output stays tied if the final norm can be divided by the scale. Otherwise the output gets an unscaled copy of
the table.
"""


def _with_sines_first(config: ModelConfig) -> ModelConfig:
    # A head transform or an embedding projection has other channels than the model, which this order does not fit.
    is_plain = not config.head_transform and config.embedding_width is None
    changes = config.positions == "sinusoidal" and not config.sinusoid_halves and is_plain
    return replace(config, sinusoid_halves=True) if changes else config


CHANNEL_COLUMNS = r"(q_proj|k_proj|v_proj|gate_proj|up_proj|embeddings\.tokens|^head\.out_proj)\.weight$"
"""Matrices whose columns are model channels."""
CHANNEL_ROWS = r"((self|cross)_attn\.out_proj|down_proj|(^encoder|^decoder|embeddings|sublayer)\.norm)\.(weight|bias)$"
"""Tensors whose rows, or elements of a vector, are model channels."""
NO_CHANNELS = r"((q_proj|k_proj|v_proj|gate_proj|up_proj|^head\.out_proj)\.bias|(q|k)_norm\.(weight|bias))$"


def _reorder_channels(config: ModelConfig, parameters: Parameters) -> dict[str, Tensor]:
    import torch

    order = torch.cat((torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)))
    found = {}
    for name, tensor in parameters.items():
        if re.search(CHANNEL_COLUMNS, name):
            found[name] = tensor[:, order]
        elif re.search(CHANNEL_ROWS, name):
            found[name] = tensor[order]
        elif re.search(NO_CHANNELS, name):
            found[name] = tensor
        else:
            raise AssertionError(f"{name}: expected a parameter that one of the patterns matches")
    return found


SINES_FIRST = Rewrite(_with_sines_first, _reorder_channels)
"""Reorder the model's channels so that sinusoidal positions have all sines before all cosines, as in Marian."""


def _with_table(config: ModelConfig) -> ModelConfig:
    return replace(config, positions="learned") if config.positions == "sinusoidal" else config


def _add_position_table(config: ModelConfig, parameters: Parameters) -> dict[str, Tensor]:
    from glassformer.nn import sinusoids

    tokens = parameters["embeddings.tokens.weight"]
    length, form = config.max_len or 0, {"halves": config.sinusoid_halves, "full_range": config.sinusoid_full_range}
    table = sinusoids(length + config.position_offset, config.table_width, **form)
    return {**parameters, "embeddings.positions.weight": table.to(tokens.dtype).to(tokens.device)}


TABULATE_SINUSOIDS = Rewrite(_with_table, _add_position_table)
"""Store sinusoidal positions as a table of learned positions, for families that have only these."""


def _with_types(config: ModelConfig) -> ModelConfig:
    return config if config.token_types else replace(config, token_types=1)


def _add_zero_token_type(config: ModelConfig, parameters: Parameters) -> dict[str, Tensor]:
    return {
        **parameters,
        "embeddings.token_types.weight": parameters["embeddings.tokens.weight"].new_zeros(1, config.table_width),
    }


ADD_ZERO_TOKEN_TYPE = Rewrite(_with_types, _add_zero_token_type)
"""Add a token type table with one row of zeros, for families that always add a token type embedding."""
