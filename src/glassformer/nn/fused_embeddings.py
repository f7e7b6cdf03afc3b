"""Embeddings by one kernel, for decoding steps, prompts and encoders (`KernelSet.embed`).

It looks up tokens and positions, scales, and adds. In a step on a GPU, each of torch's four kernels takes longer to
start than to run.
"""

from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.embeddings import Embeddings
from glassformer.nn.fused_layer import must_be_called
from glassformer.nn.positions import LearnedPositions, SinusoidalPositions


def embed(embeddings: Embeddings, tokens: Tensor, positions: Tensor, kernels: KernelSet | None) -> Tensor:
    """Return `embeddings(tokens, positions)`, (B, T, C), by one kernel where `kernels` have one."""
    can_fuse = kernels is not None and _are_plain(embeddings) and kernels.can_embed(tokens, embeddings.tokens.weight)
    if kernels is None or not can_fuse or must_be_called(embeddings):
        return embeddings(tokens, positions)
    table, added = embeddings.tokens.weight, embeddings.positions
    position_table = None
    if isinstance(added, LearnedPositions | SinusoidalPositions):
        position_table = added.rows(table.dtype, table.device)
    x = kernels.embed(tokens, table, embeddings.scale, positions, position_table)
    if embeddings.norm is not None:
        x = embeddings.norm(x)
    return x if embeddings.projection is None else embeddings.projection(x)


def _are_plain(embeddings: Embeddings) -> bool:
    """Return whether the embeddings have ordinary tables: a quantized one, for example, has no `weight`."""
    return (
        type(embeddings) is Embeddings
        and type(embeddings.tokens) is nn.Embedding
        and (embeddings.positions is None or type(embeddings.positions) in (LearnedPositions, SinusoidalPositions))
        and embeddings.token_types is None
    )
