"""Everything about how a model is trained, whatever the task."""

import math
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from glassformer.base.checks import check_positive, check_probability
from glassformer.training.schedules import Schedule

NOT_NEGATIVE = (
    "minutes",
    "warmup",
    "eps",
    "weight_decay",
    "clip",
    "r_drop",
    "lora_rank",
    "lora_alpha",
    "average_last",
    "patience",
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Each field is a flag of the command line and a key of a recipe."""

    updates: int = 8000
    """Optimiser steps, if nothing ends the training earlier."""
    minutes: float = 0.0
    """Train for about this long instead: the number of updates is chosen by timing a few before the first one."""
    max_tokens: int = 4096
    """Padded tokens of the longer side in one batch."""
    accumulate: int = 1
    """Batches whose gradients are added up for one update, weighted by their tokens: exactly one larger batch."""
    seed: int = 0

    lr: float = 2e-3
    """Peak learning rate."""
    schedule: Schedule = "inverse_sqrt"
    warmup: int = 1000
    """Updates over which the learning rate rises."""
    optimiser: Literal["adam", "adamw", "muon"] = "adam"
    """muon is for the matrices of the layers, with adamw for everything else: it learns more from as many updates, and
    more yet with a weight_decay of a few tenths. Try two to four times adamw's learning rate."""
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    """For adamw and muon; matrices alone decay."""
    momentum: float = 0.95
    """Of muon."""
    clip: float = 1.0
    """Longest gradient; 0 never clips."""

    label_smoothing: float = 0.1
    word_dropout: float = 0.0
    """Chance that a token the model reads is hidden from it (becomes <unk>)."""
    r_drop: float = 0.0
    """Weight of the disagreement between two passes with different dropout (Liang et al. 2021); doubles the cost."""

    lora_rank: int = 0
    """Learn by adapters of this rank (LoRA, Hu et al. 2021) on a checkpoint whose own numbers stay; a fresh head learns
    whole, and norms, biases and embeddings not at all. The saved model is a plain one. 0 trains everything."""
    lora_alpha: float = 0.0
    """What the adapters add is scaled by alpha / rank; 0 is the rank itself."""
    lora_layers: tuple[str, ...] = ()
    """The matrices that get adapters, by their names, such as q_proj v_proj; empty is all of attention and
    feed-forward."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto is bf16 where the device computes it fast, fp32 elsewhere."""
    device: str = "auto"
    """auto is cuda where there is one, else cpu."""
    compile: bool = False
    cuda_graphs: bool = True
    """On a GPU, record the kernels of a step for each shape of batch and replay them: small models train many times
    faster."""
    gradient_checkpointing: bool = False

    eval_every: int = 500
    """Updates between two validations; each one also saves."""
    save_every: int = 500
    keep_last: int = 3
    """How many of the newest checkpoints stay, beside the best one."""
    average_last: int = 0
    """Average the parameters of this many newest checkpoints at the end; 0 takes the best one."""
    patience: int = 0
    """Stop after this many validations without a better score; 0 never does."""
    metric: str = ""
    """What "better" means: any score of a validation, such as loss; empty is the one that the task goes by."""

    def __post_init__(self) -> None:
        for name, allowed in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name}={value}: expected a finite number")
            if get_args(allowed) and isinstance(value, str) and value not in get_args(allowed):
                raise ValueError(f"{name}={value!r}: expected one of {', '.join(get_args(allowed))}")
        for name in ("updates", "max_tokens", "accumulate", "eval_every", "save_every", "keep_last"):
            check_positive(name, getattr(self, name))
        for name in ("label_smoothing", "word_dropout"):
            check_probability(name, getattr(self, name))
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected 0 or more, and less than 1")
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr}: expected more than 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: expected 0 or more, and less than 1")
        if self.average_last > self.keep_last:
            raise ValueError(f"average_last={self.average_last}: expected at most keep_last={self.keep_last}")
