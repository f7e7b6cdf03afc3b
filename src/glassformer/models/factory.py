"""Build a model from its config."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

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


class _WithoutRandomNumbers(TorchFunctionMode):
    """A mode in which `normal_` and `uniform_`, of tensors and of `nn.init`, leave their tensor as it is.

    On the meta device they draw nothing, but `normal_` imports torch's compiler, which takes seconds and 80 MB.
    """

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
