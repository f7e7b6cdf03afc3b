"""From a config to a model."""

from glassformer.models.config import ModelConfig
from glassformer.models.decoder import DecoderModel
from glassformer.models.encoder import EncoderModel
from glassformer.models.encoder_decoder import EncoderDecoderModel
from glassformer.nn.attend import Backend


def build_model(config: ModelConfig, *, backend: Backend = "sdpa") -> EncoderModel | DecoderModel | EncoderDecoderModel:
    """Return a new model with this config. Its weights are random: call `torch.manual_seed` first to repeat them.

    >>> import glassformer as gf
    >>> model = gf.build_model(gf.preset("tiny-llama", n_decoder_layers=4))
    >>> model.kind
    'decoder'
    """
    if not isinstance(config, ModelConfig):
        raise TypeError(f"config is {config!r}: expected a ModelConfig, as preset({str(config)!r}) gives it")
    if config.kind == "encoder":
        return EncoderModel(config, backend=backend)
    if config.kind == "decoder":
        return DecoderModel(config, backend=backend)
    return EncoderDecoderModel(config, backend=backend)
