"""The numbers a model starts from: Xavier-uniform as in document 002, or the family's own recipe.

Norms start at one, biases at zero, in every scheme.
"""

import math
from collections.abc import Callable

from torch import nn

from glassformer.models.transformer import Model
from glassformer.nn import FeedForward, LearnedPositions, MultiHeadAttention


def initialise(model: Model) -> None:
    """Fill every parameter by `model.config.init`, in place."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    SCHEMES[model.config.init](model)


def _xavier(model: Model) -> None:
    """Glorot & Bengio 2010, for everything that is a matrix."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)


def _normal(model: Model) -> None:
    """BERT's, and after it BART's and Llama's: one small standard deviation for all matrices."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=model.config.init_std)


def _gpt2(model: Model) -> None:
    """GPT-2's: what is added to the residual stream starts smaller, so that its sum over the depth does not grow."""
    _normal(model)
    n_residuals = 2 * (model.config.n_encoder_layers + model.config.n_decoder_layers)
    std = model.config.init_std / math.sqrt(n_residuals)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            nn.init.normal_(module.out_proj.weight, std=std)
        elif isinstance(module, FeedForward):
            nn.init.normal_(module.down_proj.weight, std=std)


def _t5(model: Model) -> None:
    """T5's: each matrix by its own width, and queries small enough to make up for the missing 1/√head_dim."""
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
