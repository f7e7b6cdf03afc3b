"""The effect of every head: each is switched off once, and the loss of the model's own answer is measured.

Without the heads that matter most, the model also writes its text anew.
"""

import math
from typing import Any

import torch
from torch import Tensor

from glassformer.inspect.ablation import HEAD, ablate, ablation_names
from glassformer.inspect.explain_options import ExplainOptions
from glassformer.inspect.json_values import number
from glassformer.inspect.objective import Objective
from glassformer.inspect.pipeline_text import ModelText, n_weights, read_text, writing_settings, written_text
from glassformer.inspect.recorder import patch
from glassformer.progress import Step

MOST_WORK = 2.5e11
"""The most parameters times tokens times heads, which is about ten seconds on two cores."""
BATCH_TOKENS = 1024
MOST_REWRITTEN = 16
"""The most heads without which the text is written anew."""
MOST_WRITING = 2e10
"""The most parameters times written tokens times beams for that, which is about five seconds on two cores."""


def measure_heads(pipe: Any, read: ModelText, objective: Objective, output: Tensor) -> list[dict[str, Any]]:
    """Return the loss without each head, and the change; empty if the model is too large for that.

    "output" is the answer that the model gives at each position of its original text, not a new text.
    """
    model = read.model
    names = [name for name in ablation_names(model) if HEAD.fullmatch(name)]
    n_tokens = len(read.source.ids) + (0 if read.target is None else len(read.target.ids))
    if n_weights(model) * n_tokens * len(names) > MOST_WORK:
        return []
    before = float(objective.losses(output)[0])
    size = max(1, BATCH_TOKENS // n_tokens)
    found = []
    with Step("switching off heads", len(names)) as step:
        for owner, heads in _by_attention(names).items():
            for start in range(0, len(heads), size):
                some = heads[start : start + size]
                with patch(model, f"{owner}.heads", _silencer(some)):
                    changed = model(**read.inputs(copies=len(some)))
                losses = objective.losses(changed)
                for row, head in enumerate(some):
                    loss = float(losses[row])
                    found.append(
                        {
                            "name": f"{owner}.head.{head}",
                            "output": predicted_text(pipe, read, objective, changed[row]),
                            "loss": number(loss),
                            "change": number(loss - before) if math.isfinite(loss) else None,
                        }
                    )
                step.advance(len(some))
    return found


def write_without_heads(
    pipe: Any, text: str, read: ModelText, options: ExplainOptions, found: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Add the text that the model writes without it, as "written", to each head that changes the loss most; return all.

    Heads of a model that writes no text, of a given target, and of a text that is drawn at random have no such entry.
    """
    if read.target is None or options.target is not None or options.sample:
        return found
    n_beams = writing_settings(pipe, read, options).num_beams
    work = n_weights(read.model) * max(1, len(read.target.ids) - read.target.n_given) * n_beams
    most = sorted(found, key=lambda one: -abs(one["change"] or 0.0))[: min(MOST_REWRITTEN, int(MOST_WRITING / work))]
    with Step("writing without heads", len(most)) as step:
        for one in most:
            with ablate(read.model, [one["name"]]):
                again = read_text(pipe, text, options).target
            assert again is not None
            one["written"] = written_text(read.model, again)
            step.advance(1)
    return found


def _by_attention(names: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name in names:
        owner, _, head = name.rpartition(".head.")
        found.setdefault(owner, []).append(int(head))
    return found


def _silencer(heads: list[int]) -> Any:
    """Return a patch that sets head `heads[n]` of row n to zero."""

    def silence(values: Tensor) -> Tensor:
        keep = torch.ones(values.shape[:2], device=values.device, dtype=values.dtype)
        keep[torch.arange(len(heads)), torch.tensor(heads)] = 0.0
        return values * keep[:, :, None, None]

    return silence


def predicted_text(pipe: Any, read: ModelText, objective: Objective, output: Tensor) -> str:
    """Return the label, or the most likely token at each place of the answer as a text; "" for other answers."""
    if read.model.config.head == "sequence_class" and not objective.is_multi_label:
        label: str = pipe.labels[int(output.argmax())]
        return label
    if read.model.config.head != "language_model":
        return ""
    ids = output[objective.places].argmax(-1).tolist()
    side = read.target or read.source
    text: str = side.tokenizer.decode(ids)
    return text
