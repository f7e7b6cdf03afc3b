"""Weight initialization: Xavier-uniform as in the tutorial document 002, or the scheme of a model family.

`docs/documents.md` describes the tutorial documents that this project implements. In every scheme norm weights start at
1 and biases at 0.
"""

import math
from collections.abc import Callable

from torch import nn

from glassformer.models.transformer import Model
from glassformer.nn import FeedForward, LearnedPositions, MultiHeadAttention


def initialize(model: Model) -> None:
    """Initialize all parameters of the model in place by the scheme that `model.config.init` names."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    SCHEMES[model.config.init](model)


def _xavier(model: Model) -> None:
    """Initialize all matrices from a Xavier-uniform distribution (Glorot and Bengio 2010)."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)


def _normal(model: Model) -> None:
    """Initialize all matrices from a normal distribution with standard deviation `init_std`, as in BERT and Llama."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=model.config.init_std)


def _gpt2(model: Model) -> None:
    """Initialize as `_normal` does, but with a smaller standard deviation for projections that end a residual branch.

    As in GPT-2, this keeps the variance of the residual stream from growing with depth.
    """
    _normal(model)
    n_residuals = 2 * (model.config.n_encoder_layers + model.config.n_decoder_layers)
    std = model.config.init_std / math.sqrt(n_residuals)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.normal_(module.out_proj.weight, std=std)
        elif isinstance(module, FeedForward):
            nn.init.normal_(module.down_proj.weight, std=std)


def _t5(model: Model) -> None:
    """Initialize as T5 does, from normal distributions whose standard deviation depends on the matrix.

    It is 1 for embeddings and 1/√(input width) for other matrices. For the query projection it is smaller by the factor
    1/√head_size, because T5 does not multiply its attention scores by that factor.
    """
    config = model.config
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=config.d_model**-0.5)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.normal_(module.q_proj.weight, std=(config.d_model * config.head_size) ** -0.5)
            nn.init.normal_(module.out_proj.weight, std=(config.n_heads * config.head_size) ** -0.5)
        elif isinstance(module, FeedForward):
            nn.init.normal_(module.down_proj.weight, std=module.down_proj.in_features**-0.5)
        elif isinstance(module, nn.Embedding | LearnedPositions):
            nn.init.normal_(module.weight, std=1.0)


SCHEMES: dict[str, Callable[[Model], None]] = {"xavier": _xavier, "normal": _normal, "gpt2": _gpt2, "t5": _t5}
