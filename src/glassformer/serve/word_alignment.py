"""Which words of a translation come from which words of its source, by the attention between them."""

import re
from typing import Any

import torch
from torch import Tensor

from glassformer.nn import capture_attention
from glassformer.pipelines.pipeline import as_json_number
from glassformer.text.encoded import Encoded
from glassformer.text.tokenizer import BEGIN

WORD = re.compile(r"\S+")


def align_words(pipeline: Any, source: str, target: str) -> list[dict[str, Any]]:
    """Return, for each word of the target, the word of the source that it attends to most.

    Each entry has both words, their places in characters, and the attention weight: the share of the target word's
    attention that goes to this source word, as a mean over layers and heads. END is no word, so weights are below 1.
    """
    read, write = (
        tokenizer.offsets_batch([(text, None)])[0]
        for tokenizer, text in ((pipeline.source_tokenizer, source), (pipeline.target_tokenizer, target))
    )
    limit = pipeline.model.config.max_len
    if limit is not None and max(len(read), len(write)) > limit:
        return []
    begin = getattr(pipeline, "begin", BEGIN)
    device = next(pipeline.model.parameters()).device
    with torch.inference_mode(), capture_attention(pipeline.model, kinds=["cross_attn"]) as captured:
        given = torch.tensor([[begin, *write.ids[:-1]]], device=device)
        pipeline.model(torch.tensor([read.ids], device=device), given)
    weights = torch.stack([captured[name][0] for name in captured]).float().mean((0, 1)).cpu()  # (T, S)
    words = [WORD.finditer(text) for text in (target, source)]
    targets, sources = ([(found.span(), found.group()) for found in several] for several in words)
    if not sources:
        return []
    shares = _group(_group(weights, write, targets, mean=True).T, read, sources, mean=False).T
    entries = []
    for (span, word), row in zip(targets, shares, strict=True):
        best = int(row.argmax())
        place, origin = sources[best]
        weight = as_json_number(float(row[best]))
        entries.append(
            {"target": word, "target_span": [*span], "source": origin, "source_span": [*place], "weight": weight}
        )
    return entries


def _group(rows: Tensor, encoded: Encoded, words: list[tuple[tuple[int, int], str]], *, mean: bool) -> Tensor:
    """Join the rows (T, N) of a text's tokens to rows of its words (W, N), by their mean or their sum."""
    joined = torch.zeros(len(words), rows.shape[1])
    for number, ((begin, end), _) in enumerate(words):
        own = [
            place
            for place, (span, origin) in enumerate(zip(encoded.spans, encoded.sources, strict=True))
            if origin is not None and span[0] < end and span[1] > begin
        ]
        if own:
            joined[number] = rows[own].mean(0) if mean else rows[own].sum(0)
    return joined
