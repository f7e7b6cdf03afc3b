"""Coverage penalty of beam search (Wu et al. 2016): prefer texts whose attention has covered the whole source.

A translation that leaves out a part of its source has given little attention to those source tokens. A hypothesis's
coverage sums the attention of all its steps. Its score changes by coverage_penalty · Σ log min(coverage, 1) over the
source tokens: 0 if every token received a sum of at least 1, and the more below 0 the more was left out.

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
    """Capture the cross-attention of the last layer at each step, if the config has a coverage penalty.

    The steps must be plain ones, because recorded steps cannot be captured (`nn/attention_capture.py`).
    """
    if not config.coverage_penalty:
        return nullcontext()
    return capture_attention(model, layers=[-1], kinds=["cross_attn"])


def attention_of_step(captured: CapturedAttention, num_beams: int, dtype: torch.dtype) -> Tensor:
    """Return the attention (N, S) of the newest token to the source: the last layer's, averaged over its heads.

    The hypotheses of a sentence are queries of one row, (B, H, num_beams · T, S), because they share the source.
    """
    weights = captured[next(iter(captured))].to(dtype).mean(1)  # (B, num_beams · T, S)
    return weights.view(len(weights), num_beams, -1, weights.shape[2])[:, :, -1].flatten(0, 1)  # (N, S)


def log_coverage(coverage: Tensor, is_real: Tensor | None) -> Tensor:
    """Return Σ log min(coverage, 1) over the real source tokens: (beams, hypotheses, S) -> (beams, hypotheses).

    `is_real` (beams, S) is False at padding.
    """
    logs = coverage.clamp(1e-9, 1.0).log()
    return (logs if is_real is None else logs * is_real[:, None]).sum(-1)
