"""The same decoder without the factor on its token vectors, for those who know no such factor."""

from dataclasses import replace

import torch

from glassformer.models.decoder import DecoderModel


def unscaled(model: DecoderModel) -> DecoderModel:
    """A model that computes the same, with the factor in its table: an output that shared the table gets its own."""
    embeddings = model.embeddings
    if embeddings.scale is None:
        return model
    config = replace(model.config, scale_embeddings=False, tie="none")
    with torch.device("meta"):
        plain = DecoderModel(config)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    values["embeddings.tokens.weight"] *= embeddings.scale
    plain.load_state_dict(values, assign=True)
    return plain.train(model.training)
