"""Activation functions: their names, and the torch function of each. Importing this module does not import torch.

docs/extending.md lists the files to change for a new activation. The model config, the command line and the
feed-forward network then accept the new name.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu"]
"""Names of the activations that a feed-forward network can use, as in `ModelConfig.activation`."""
HeadActivationName = Literal[ActivationName, "tanh", "identity"]
"""Names of the activations that a head can use: those of the feed-forward network, "tanh" (BERT's pooler) and none."""


def activation_function(name: HeadActivationName) -> "Callable[[Tensor], Tensor]":
    """Return the torch function for the activation `name`. Raises ValueError if the name is unknown."""
    import torch.nn.functional as F

    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "silu": F.silu,
        "tanh": F.tanh,
        "identity": lambda x: x,
    }
    if name not in functions:
        raise ValueError(f"activation={name!r}: expected one of {', '.join(functions)}")
    return functions[name]
