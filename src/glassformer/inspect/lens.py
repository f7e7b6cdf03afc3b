"""What each layer would predict: the model's head, or the nearest token vectors, applied to every hidden state.

The logit lens (nostalgebraist 2020) applies the final norm and the language-model head to the output of each layer. For
the last layer that is the model's own prediction. Hidden states of a stack without such a head are compared with the
token embeddings by their cosine.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.inspect.json_values import number
from glassformer.inspect.pipeline_text import AnyModel, ModelText, SideTokens
from glassformer.inspect.recorder import RecordedActivations
from glassformer.models import EncoderDecoderModel
from glassformer.nn import Embeddings, Stack

N_TOKENS = 5
"""How many tokens are listed at each position."""
MOST_WORK = 4e10
"""The most multiplications of a lens. Of a long text, only the last positions are looked at."""


def describe_lens(read: ModelText, recorded: RecordedActivations) -> list[dict[str, Any]]:
    """Return the most likely, or nearest, tokens of every layer and position. Layer 0 is the embeddings."""
    model, found = read.model, []
    for kind in ("encoder", "decoder"):
        stack = getattr(model, kind, None)
        if not isinstance(stack, Stack):
            continue
        side = read.target if kind == "decoder" else read.source
        assert side is not None
        is_last = kind == "decoder" or not isinstance(model, EncoderDecoderModel)
        has_logits = is_last and model.config.head == "language_model"
        work = model.config.vocab_size * model.config.d_model * (stack.depth + 1)
        first = max(0, len(side.ids) - max(1, int(MOST_WORK / work)))
        table = None if has_logits else _token_vectors(embeddings_of(model, kind))
        for layer in range(stack.depth + 1):
            hidden = recorded[f"{kind}.layers.0.resid.in" if not layer else f"{kind}.layers.{layer - 1}.resid.out"]
            hidden = hidden[0, first:].to(next(model.parameters()).device)
            rows = _logits(model, stack, hidden, side) if table is None else _nearest(hidden, table, side)
            found.append({"stack": kind, "layer": layer, "tokens": [*([] for _ in range(first)), *rows]})
    return found


def embeddings_of(model: AnyModel, kind: str) -> Embeddings:
    """Return the embeddings of a model's encoder or decoder."""
    name = f"{'source' if kind == 'encoder' else 'target'}_embeddings"
    found: Embeddings = getattr(model, name if hasattr(model, name) else "embeddings")
    return found


def _logits(model: AnyModel, stack: Stack, hidden: Tensor, side: SideTokens) -> list[list[dict[str, Any]]]:
    normed = hidden if stack.norm is None else stack.norm(hidden)
    probabilities = model.apply_head(normed[None])[0].float().softmax(-1)
    return _top(probabilities, side, "probability")


def token_table(embeddings: Embeddings) -> Tensor:
    """Return the embedding table (V, width), decoded if it is quantized."""
    weight = getattr(embeddings.tokens, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return weight
    found: Tensor = embeddings.tokens(torch.arange(embeddings.tokens.num_embeddings))
    return found


def _token_vectors(embeddings: Embeddings) -> Tensor:
    """Return the vectors of all tokens (V, C), in the width of the model, with Euclidean length 1."""
    weight = token_table(embeddings)
    vectors = weight if embeddings.projection is None else embeddings.projection(weight)
    return F.normalize(vectors.float(), dim=-1)


def _nearest(hidden: Tensor, table: Tensor, side: SideTokens) -> list[list[dict[str, Any]]]:
    return _top(F.normalize(hidden.float(), dim=-1) @ table.T, side, "similarity")


def _top(values: Tensor, side: SideTokens, name: str) -> list[list[dict[str, Any]]]:
    best = values.topk(min(N_TOKENS, values.shape[1]), dim=-1)
    return [
        [
            {"token": token, "id": index, name: number(value)}
            for token, index, value in zip(side.tokenizer.tokens(ids), ids, some, strict=True)
        ]
        for ids, some in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
