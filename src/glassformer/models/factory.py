"""Build a model from its config."""

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
