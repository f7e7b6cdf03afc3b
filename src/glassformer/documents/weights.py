"""Load a `state_dict()` of the tutorial documents' own code into our models, by mapping its parameter names to ours.

`docs/documents.md` describes the five tutorial documents that this project implements.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.documents.styles import MODERN, PAPER, PRE_NORM
from glassformer.nn import Embeddings, FeedForward, MeanStdNorm, Sublayer

Names = Mapping[str, Tensor]
Pairs = list[tuple[str, str]]
"""Pairs of a parameter's name in our model and its name in the document's state."""

# Applied in this order, each to the whole name.
RENAMES: tuple[tuple[str, str], ...] = (
    # Complete models. Documents 000 and 001, then 003.
    (r"^encoder_embedding\.", "source_embeddings.tokens."),
    (r"^decoder_embedding\.", "target_embeddings.tokens."),
    (r"^(en|de)coder_layers\.", r"\1coder.layers."),
    (r"^src_embedding\.embedding\.", "source_embeddings.tokens."),
    (r"^tgt_embedding\.embedding\.", "target_embeddings.tokens."),
    (r"^shared_embedding\.embedding\.", "source_embeddings.tokens."),
    (r"^(embedding\.)?embedding\.", "embeddings.tokens."),
    (r"^(fc_out|linear|lm_head|head)\.(?=weight|bias)", "head.out_proj."),
    (r"^blocks\.", "decoder.layers."),
    # Parts, wherever they are. The names with an underscore or `_block` are document 002's.
    (r"\b[Ww]_([qkv])\.", r"\1_proj."),
    (r"\b[Ww]_o\.", "out_proj."),
    (r"\b(self|cross)_attention(_block)?\.", r"\1_attn."),
    (r"\bfeed_forward(_block)?\.", "ffn."),
    (r"\blinear_?1\.", "up_proj."),
    (r"\blinear_?2\.", "down_proj."),
    (r"\bgamma$", "weight"),
    (r"\bbeta$", "bias"),
)
RESIDUAL = re.compile(r"^(?P<layer>.*?)\b(norm|residual)(?P<number>[123])\.(norm\.)?")
"""Matches the norm of a layer's first, second or third sublayer.

An example is `norm2` in tutorial document 000, or `residual2.norm` in 003.
"""

KINDS: tuple[tuple[str, str], ...] = (
    (r"encoder_embedding\.", "document 000's Transformer"),
    (r"src_embedding\.", "document 003's Transformer"),
    (r"shared_embedding\.", "document 003's T5Model"),
    (r"blocks\.", "document 003's GPTModel"),
    (r"embedding\.embedding\.", "document 003's BERTModel"),
    (r"layers\.\d+\.cross_attention\.", "document 003's Decoder"),
    (r"layers\.\d+\.self_attention\.", "document 003's Encoder"),
    (r"cross_attn\.W_", "document 000's DecoderLayer"),
    (r"self_attn\.W_", "document 000's EncoderLayer"),
    (r"cross_attention\.w_", "document 003's DecoderBlock"),
    (r"self_attention\.w_", "document 003's EncoderBlock"),
    (r"cross_attention_block\.", "document 002's DecoderBlock"),
    (r"self_attention_block\.", "document 002's EncoderLayer"),
    (r"W_q\.", "document 000's MultiHeadAttention"),
    (r"w_q\.", "document 003's MultiHeadAttention"),
    (r"linear1\.", "document 000's FeedForward or 003's PositionWiseFeedForward"),
    (r"linear_1\.", "document 002's FeedForwardBlock"),
    (r"norm\.gamma$", "document 003's ResidualConnection"),
    (r"gamma$", "document 003's LayerNormalization"),
    (r"embedding\.", "document 002's InputEmbedding or 003's TokenEmbedding"),
    (r"proj\.", "document 002's ProjectionLayer"),
    (r"pe$", "a PositionalEncoding"),
)
"""Modules of the tutorial documents, each with a pattern for the start of one of its parameter names.

The first pattern that matches a state names the module in error messages.
"""

STYLES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"\bnorm1\.weight$", {**PAPER, "scale_embeddings": False}),
    (r"\bresidual1\.norm\.", {**MODERN, "scale_embeddings": True}),
    (r"\bresidual_connections\.", {**PRE_NORM, "scale_embeddings": True}),
)
"""Layer styles of the tutorial documents, each with a pattern that matches parameter names of such layers only."""


def load_document_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the `state_dict()` of a tutorial document's module, a complete model or a part of one, into our `model`.

    The state must hold every parameter of the model and no other, and the model must have the document's layer style;
    otherwise ValueError is raised. The documents store their sinusoids in the state (`pe`); ours are computed, so `pe`
    is ignored.
    """
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise TypeError(f"state is a {type(state).__name__}: expected a state_dict(), tensors by their names")
    theirs = {name: value for name, value in state.items() if name.split(".")[-1] != "pe"}
    # Our blocks wrap a layer: `layer.self_attn` in ours is `self_attn` in theirs.
    own = {re.sub(r"\blayer\.", "", name): value for name, value in model.state_dict(keep_vars=True).items()}
    pairs = [(rename(name, theirs), name) for name in theirs]
    _check_names(model, state, own, pairs)
    _check_style(model, state)
    _check_values(model, theirs, own, pairs)
    with torch.no_grad():
        for name, their_name in pairs:
            own[name].copy_(theirs[their_name])


def rename(name: str, names: Collection[str] = ()) -> str:
    """Return our name for a parameter of a tutorial document's module.

    `names` are the names of all parameters in its state. They show whether the layer belongs to a decoder, whose layers
    have a third norm, and whether the model is a GPTModel, in which names start with "blocks.".
    """
    if name.startswith("norm.") and any(other.startswith("blocks.") for other in names):
        name = f"decoder.{name}"
    name = re.sub(r"\bresidual_connections\.([012])\.", lambda found: f"residual{int(found[1]) + 1}.", name)
    place = RESIDUAL.match(name)
    if place is not None:
        layer, number = place["layer"], int(place["number"])
        is_decoder = any(
            re.match(re.escape(layer) + r"(norm3|residual3|residual_connections\.2)\.", other) for other in names
        )
        steps = ("self_attn", "cross_attn", "ffn") if is_decoder else ("self_attn", "ffn", "ffn")
        name = f"{layer}{steps[number - 1]}_sublayer.norm.{name[place.end() :]}"
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _check_names(model: nn.Module, state: Mapping[str, Tensor], own: Names, pairs: Pairs) -> None:
    """Raise ValueError unless the names in the state, mapped to ours, are exactly the model's parameters.

    `own` holds the model's parameters by name; `pairs` holds, for each entry of the state, our name and the document's.
    """
    # A tied table is in our state under each of its names, in theirs perhaps under one.
    given = {id(own[name]) for name, _ in pairs if name in own}
    missing = [name for name, value in own.items() if id(value) not in given]
    unknown = [their_name for name, their_name in pairs if name not in own]
    count = Counter(name for name, _ in pairs)
    twice = [their_name for name, their_name in pairs if count[name] > 1]
    if not (missing or unknown or twice):
        return
    parts = ("Missing", missing), ("Not a parameter of the model", unknown), ("Given twice", twice)
    listed = ". ".join(f"{title}: {_shorten(names)}" for title, names in parts if names)
    raise ValueError(
        f"the state is {_kind_of(state)}: expected the state of the document's module for {type(model).__name__}, with "
        f"{len(own)} parameters. {listed}"
    )


def _check_style(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError if the model's layer style differs from that of the document which the state comes from.

    The style is the norm and its placement, the activation, and whether embeddings are scaled.
    """
    style = next((style for pattern, style in STYLES if any(re.search(pattern, name) for name in state)), None)
    if style is None:
        return
    found: dict[str, Any] = {}
    for module in model.modules():
        if isinstance(module, Sublayer):
            found["norm_placement"] = module.placement
            found["norm"] = "mean_std" if isinstance(module.norm, MeanStdNorm) else "layer"
        elif isinstance(module, FeedForward):
            found["activation"] = module.activation
        elif isinstance(module, Embeddings):
            found["scale_embeddings"] = module.scale is not None
    wrong = [
        f"{name}={found[name]!r} where {style[name]!r} is expected" for name in found if found[name] != style[name]
    ]
    if wrong:
        raise ValueError(f"the state is {_kind_of(state)}, and {type(model).__name__} has {', '.join(wrong)}")


def _check_values(model: nn.Module, theirs: Names, own: Names, pairs: Pairs) -> None:
    """Raise ValueError unless all shapes match and parameters that the model ties have equal values in the state.

    `theirs` is the state without the sinusoids; `own` and `pairs` are as in `_check_names`.
    """
    first: dict[int, str] = {}
    for name, their_name in pairs:
        value, expected = theirs[their_name], own[name]
        if value.shape != expected.shape:
            raise ValueError(
                f"{their_name} has shape {tuple(value.shape)}: expected {tuple(expected.shape)}, as "
                f"{type(model).__name__} has it; build the model with the sizes of the state"
            )
        other = first.setdefault(id(expected), their_name)
        if not torch.equal(value, theirs[other]):
            raise ValueError(f"{other} and {their_name} differ: expected equal values, for the model shares them")


def _kind_of(state: Mapping[str, Tensor]) -> str:
    kinds = (kind for pattern, kind in KINDS if any(re.match(pattern, name) for name in state))
    return next(kinds, f"no document's, with the names {_shorten(list(state))}" if state else "empty")


def _shorten(names: list[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
