"""Build a model from its config."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from glassformer.models.blocks_from_config import make_head
from glassformer.models.config import ModelConfig
from glassformer.models.decoder import DecoderModel
from glassformer.models.encoder import EncoderModel
from glassformer.models.encoder_decoder import EncoderDecoderModel
from glassformer.nn.attention_backends import Backend


def build_model(config: ModelConfig, *, backend: Backend = "sdpa") -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """Return a new model of this config with random weights. For reproducible ones, call `torch.manual_seed` first.

    `backend` names the implementation of attention, one of those in `nn/attention_backends.py`.

    >>> import glassformer as gf
    >>> model = gf.build_model(gf.preset("tiny-llama", n_decoder_layers=4))
    >>> model.kind
    'decoder'
    """
    if not isinstance(config, ModelConfig):
        raise TypeError(f"config is {config!r}: expected a ModelConfig, such as preset({str(config)!r})")
    if config.kind == "encoder":
        return EncoderModel(config, backend=backend)
    if config.kind == "decoder":
        return DecoderModel(config, backend=backend)
    return EncoderDecoderModel(config, backend=backend)


def build_on_meta(config: ModelConfig) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """Return a model of this config on torch's meta device, where parameters have shapes but no memory."""
    with torch.device("meta"), _WithoutRandomNumbers():
        return build_model(config)


def build_with_new_head(config: ModelConfig) -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """Return a model on the meta device whose head has the values that `build_model(config)` would give it.

    The random numbers of all other parameters are drawn and discarded, one tensor at a time. So the random numbers of
    the head, and all that are drawn afterwards, are those of `build_model`.
    """
    with torch.device("meta"), _DiscardedNumbers() as numbers:
        model = build_model(config)
    state, head, empty_head = torch.get_rng_state(), make_head(config), model.head
    if head is None or empty_head is None:
        return model
    body = {id(parameter) for name, parameter in model.named_parameters() if not name.startswith("head.")}
    for module, empty in zip(head.modules(), empty_head.modules(), strict=True):
        for name, parameter in empty.named_parameters(recurse=False):
            if id(parameter) in body:  # tied to the embeddings
                setattr(module, name, parameter)
            elif parameter.dim() > 1:
                numbers.draw_again(parameter, getattr(module, name).data)
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(getattr(module, name))
    torch.set_rng_state(state)
    model.head = head
    return model


RANDOM = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
"""The functions that initialize parameters with random numbers."""


class _DiscardedNumbers(TorchFunctionMode):
    """A mode in which the functions of `RANDOM` draw the numbers of a tensor on the meta device and discard them."""

    def __init__(self) -> None:
        super().__init__()
        self._draws: dict[int, tuple[Tensor, Callable[..., Any], Any, Any]] = {}

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in RANDOM:
            return func(*args, **(kwargs or {}))
        options = dict(kwargs or {})
        tensor: Tensor = args[0] if args else options.pop("tensor")
        self._draws[id(tensor)] = torch.get_rng_state(), func, args[1:], options
        func(torch.empty(tensor.shape, device="cpu"), *args[1:], **options)
        return tensor

    def draw_again(self, tensor: Tensor, into: Tensor) -> None:
        """Draw the numbers that a tensor on the meta device got last, into a tensor of the same shape."""
        state, func, args, options = self._draws[id(tensor)]
        torch.set_rng_state(state)
        func(into, *args, **options)


class _WithoutRandomNumbers(TorchFunctionMode):
    """A mode in which the functions of `RANDOM` leave their tensor as it is.

    On the meta device they draw nothing, but `normal_` imports torch's compiler, which takes seconds and 80 MB.
    """

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RANDOM:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
