"""The most likely next tokens at each position of a text that a model writes or continues."""

from typing import Any

import torch
from torch import Tensor

from glassformer.inspect.json_values import number
from glassformer.inspect.pipeline_text import ModelText

CANDIDATES, FEW_CANDIDATES = 50, 5
"""How many next tokens are listed at each of the last positions, and at the positions before those."""
LAST_POSITIONS = 64
TEMPERATURES = [step / 10 for step in range(1, 21)]


def describe_next(read: ModelText, output: Tensor) -> list[dict[str, Any]] | None:
    """Return the most likely next tokens at each position of the target; None for a model that writes no text."""
    if read.target is None or read.model.config.head != "language_model":
        return None
    logits, tokenizer, found = output[0].float(), read.target.tokenizer, []
    logs = logits.log_softmax(-1)  # (T, V)
    for place, answer in enumerate(read.answers):
        is_late = place >= len(logs) - LAST_POSITIONS
        best = logs[place].topk(min(CANDIDATES if is_late else FEW_CANDIDATES, logs.shape[1]))
        ids = best.indices.tolist()
        chosen = None
        if answer is not None:
            chosen = {"id": answer, "token": tokenizer.tokens([answer])[0]}
            chosen["log_probability"] = number(logs[place, answer])
        values = zip(ids, tokenizer.tokens(ids), logits[place, ids].tolist(), best.values.tolist(), strict=True)
        found.append(
            {
                "position": place,
                "chosen": chosen,
                "candidates": [
                    {"id": i, "token": token, "logit": number(logit), "log_probability": number(log)}
                    for i, token, logit, log in values
                ],
                "rest": number((1 - best.values.exp().sum()).clamp_min(0)),
                "rest_log_sums": rest_log_sums(logits[place], best.indices) if is_late else None,
            }
        )
    return found


def rest_log_sums(logits: Tensor, candidates: Tensor) -> list[float | None] | None:
    """Return log Σ exp(logit / T) over the tokens that are not candidates, for T = 0.1, 0.2, ..., 2.

    With these, a page computes exact probabilities at any of these temperatures. None if every token is a candidate.
    """
    if len(candidates) == len(logits):
        return None
    rest = logits.index_fill(0, candidates, -torch.inf)
    temperatures = torch.tensor(TEMPERATURES, device=logits.device)[:, None]
    return [number(value) for value in (rest / temperatures).logsumexp(-1)]
