"""Load what was trained with the documents' own code: a table from their parameter names to ours."""

import re
from collections.abc import Mapping

from torch import Tensor, nn

# Applied in this order, each to the whole name. The first group is documents 000 and 001, the second 003.
RENAMES: tuple[tuple[str, str], ...] = (
    (r"^encoder_embedding\.", "source_embeddings.tokens."),
    (r"^decoder_embedding\.", "target_embeddings.tokens."),
    (r"^(en|de)coder_layers\.", r"\1coder.layers."),
    (r"^fc_out\.", "head.out_proj."),
    (r"\.W_([qkv])\.", r".\1_proj."),
    (r"\.W_o\.", ".out_proj."),
    (r"(layers\.\d+)\.norm1\.", r"\1.self_attn_sublayer.norm."),
    (r"^(encoder\.layers\.\d+)\.norm2\.", r"\1.ffn_sublayer.norm."),
    (r"^(decoder\.layers\.\d+)\.norm2\.", r"\1.cross_attn_sublayer.norm."),
    (r"(layers\.\d+)\.norm3\.", r"\1.ffn_sublayer.norm."),
    (r"\.ffn\.linear1\.", ".ffn.up_proj."),
    (r"\.ffn\.linear2\.", ".ffn.down_proj."),
    #
    (r"^src_embedding\.embedding\.", "source_embeddings.tokens."),
    (r"^tgt_embedding\.embedding\.", "target_embeddings.tokens."),
    (r"^shared_embedding\.embedding\.", "source_embeddings.tokens."),
    (r"^embedding\.embedding\.", "embeddings.tokens."),
    (r"^(linear|lm_head|head)\.(?=weight|bias)", "head.out_proj."),
    (r"^norm\.", "decoder.norm."),
    (r"^blocks\.(\d+)\.residual2\.", r"decoder.layers.\1.ffn_sublayer."),
    (r"^blocks\.", "decoder.layers."),
    (r"\.w_([qkv])\.", r".\1_proj."),
    (r"\.w_o\.", ".out_proj."),
    (r"\.(self|cross)_attention\.", r".\1_attn."),
    (r"\.feed_forward\.linear1\.", ".ffn.up_proj."),
    (r"\.feed_forward\.linear2\.", ".ffn.down_proj."),
    (r"\.residual1\.", ".self_attn_sublayer."),
    (r"^(encoder\.layers\.\d+)\.residual2\.", r"\1.ffn_sublayer."),
    (r"^(decoder\.layers\.\d+)\.residual2\.", r"\1.cross_attn_sublayer."),
    (r"\.residual3\.", ".ffn_sublayer."),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
)


def load_document_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the `state_dict()` of a document's model into ours; every parameter must be there, and nothing more.

    The documents keep their sinusoids in the state (`pe`); ours are computed, so these are passed over.
    """
    renamed = {rename(name): value for name, value in state.items() if not name.endswith(".pe")}
    own = model.state_dict(keep_vars=True)
    by_identity = {id(value): renamed[name] for name, value in own.items() if name in renamed}
    # A tied table stands in our state under each of its names, in theirs perhaps under one.
    complete = {name: by_identity[id(value)] for name, value in own.items() if id(value) in by_identity}
    model.load_state_dict(complete | renamed, strict=True)


def rename(name: str) -> str:
    """Our name of a document's parameter."""
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name
