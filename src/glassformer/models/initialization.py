"""Weight initialization: Xavier-uniform as in document 002, or the scheme of a model family.

In every scheme norm weights start at 1 and biases at 0.
"""

import math
from collections.abc import Callable

from torch import nn

from glassformer.models.transformer import Model
from glassformer.nn import FeedForward, LearnedPositions, MultiHeadAttention


def initialize(model: Model) -> None:
    """Initialize all parameters in place by the scheme that `model.config.init` names."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    SCHEMES[model.config.init](model)


def _xavier(model: Model) -> None:
    """Xavier-uniform for all matrices (Glorot and Bengio 2010)."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)


def _normal(model: Model) -> None:
    """A normal distribution with one small standard deviation for all matrices: BERT, BART, Llama."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=model.config.init_std)


def _gpt2(model: Model) -> None:
    """GPT-2: output projections start smaller, so that the variance of the residual stream does not grow with depth."""
    _normal(model)
    n_residuals = 2 * (model.config.n_encoder_layers + model.config.n_decoder_layers)
    std = model.config.init_std / math.sqrt(n_residuals)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.normal_(module.out_proj.weight, std=std)
        elif isinstance(module, FeedForward):
            nn.init.normal_(module.down_proj.weight, std=std)


def _t5(model: Model) -> None:
    """T5: a standard deviation by the width of each matrix; smaller for queries, in place of the factor 1/√head_dim."""
    config = model.config
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=config.d_model**-0.5)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.normal_(module.q_proj.weight, std=(config.d_model * config.head_size) ** -0.5)
            nn.init.normal_(module.out_proj.weight, std=(config.n_heads * config.head_size) ** -0.5)
        elif isinstance(module, FeedForward):
            nn.init.normal_(module.down_proj.weight, std=config.d_ff**-0.5)
        elif isinstance(module, nn.Embedding | LearnedPositions):
            nn.init.normal_(module.weight, std=1.0)


SCHEMES: dict[str, Callable[[Model], None]] = {"xavier": _xavier, "normal": _normal, "gpt2": _gpt2, "t5": _t5}
