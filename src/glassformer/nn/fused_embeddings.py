"""Embeddings by one kernel: look up tokens and positions, scale, and add (`KernelSet.embed`).

In a decoding step on a GPU, each of torch's four kernels takes longer to start than to run.
"""

from torch import Tensor, nn

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.embeddings import Embeddings
from glassformer.nn.fused_layer import must_be_called
from glassformer.nn.positions import LearnedPositions, SinusoidalPositions


def embed(embeddings: Embeddings, tokens: Tensor, positions: Tensor, kernels: KernelSet | None) -> Tensor:
    """Return `embeddings(tokens, positions)`, (B, T, C), by one kernel where `kernels` have one."""
    weight, added = embeddings.tokens.weight, embeddings.positions
    is_plain = (
        type(embeddings) is Embeddings
        and type(embeddings.tokens) is nn.Embedding
        and (added is None or type(added) in (LearnedPositions, SinusoidalPositions))
        and embeddings.token_types is None
    )
    if kernels is None or not is_plain or not kernels.can_embed(tokens, weight) or must_be_called(embeddings):
        return embeddings(tokens, positions)
    table = None
    if isinstance(added, LearnedPositions | SinusoidalPositions):
        table = added.rows(weight.dtype, weight.device)
    x = kernels.embed(tokens, weight, embeddings.scale, positions, table)
    if embeddings.norm is not None:
        x = embeddings.norm(x)
    return x if embeddings.projection is None else embeddings.projection(x)
