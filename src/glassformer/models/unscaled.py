"""The same decoder without the factor on its token vectors, for formats that have no such factor."""

from dataclasses import replace

import torch
from torch import nn

from glassformer.models.decoder import DecoderModel


def unscaled(model: DecoderModel) -> DecoderModel:
    """A model that computes the same logits up to rounding, with the factor in its table of token vectors.

    A table that the output shares stays shared: the last norm is divided by the factor. Without a last norm, the output
    gets a table of its own.
    """
    scale = model.embeddings.scale
    if scale is None:
        return model
    config = model.config
    is_shared = config.ties_output and config.has_final_norm and not config.head_transform
    config = replace(config, scale_embeddings=False, tie=config.tie if is_shared else "none")
    with torch.device("meta"):
        plain = DecoderModel(config)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    values["embeddings.tokens.weight"] *= scale
    if is_shared:
        for name in values.keys() & {"decoder.norm.weight", "decoder.norm.bias"}:
            values[name] /= scale
    plain.load_state_dict(values, assign=True)
    if is_shared:
        output = plain.get_submodule("head.out_proj")
        assert isinstance(output, nn.Linear)
        output.weight = plain.embeddings.tokens.weight
    return plain.train(model.training)
