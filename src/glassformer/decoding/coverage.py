"""Coverage penalty of beam search (Wu et al. 2016): prefer texts whose attention has covered the whole source.

A translation that leaves out a part of its source has given little attention to those source tokens. A hypothesis's
coverage sums the attention of all its steps. Its score changes by coverage_penalty · Σ log min(coverage, 1) over the
source tokens: 0 if every token received a sum of at least 1, and lower the more was left out.

Shapes: N hypotheses, S source tokens.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.nn import capture_attention
from glassformer.nn.attention_capture import CapturedAttention


def capture_source_attention(
    model: nn.Module, config: GenerationConfig
) -> AbstractContextManager[CapturedAttention | None]:
    """Return a context manager that captures the last layer's cross-attention weights, if there is a coverage penalty.

    It yields the captured weights of the newest step, or None without a penalty. Only plain steps can be captured, not
    recorded ones (`nn/attention_capture.py`).
    """
    if not config.coverage_penalty:
        return nullcontext()
    return capture_attention(model, layers=[-1], kinds=["cross_attn"])


def attention_of_step(captured: CapturedAttention, num_beams: int, dtype: torch.dtype) -> Tensor:
    """Return the attention weights (N, S) of each hypothesis's newest token, averaged over the heads of the last layer.

    The captured weights are (B, H, num_beams · T, S): the hypotheses of a sentence are queries of one batch row,
    because they share the source.
    """
    weights = captured[next(iter(captured))].to(dtype).mean(1)  # (B, num_beams · T, S)
    return weights.view(len(weights), num_beams, -1, weights.shape[2])[:, :, -1].flatten(0, 1)  # (N, S)


def log_coverage(coverage: Tensor, is_real: Tensor | None) -> Tensor:
    """Return Σ log min(coverage, 1) over the real source tokens: (beams, hypotheses, S) -> (beams, hypotheses).

    `is_real` (beams, S) is False at padding.
    """
    logs = coverage.clamp(1e-9, 1.0).log()
    return (logs if is_real is None else logs * is_real[:, None]).sum(-1)
