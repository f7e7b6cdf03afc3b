"""The options of an explanation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from glassformer.base.checks import check_positive, shown
from glassformer.base.names import suggestion
from glassformer.decoding import GenerationConfig

PARTS = ("attention", "lens", "next", "beam", "attribution", "ablation", "rewriting", "learning", "health")
"""The parts of an explanation that can be left out, because computing them takes time."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Settings of one explanation: the parts to compute, and how the model writes its text."""

    target: str | None = None
    """The text after the prompt, or of the decoder; None lets the model write it."""
    max_tokens: int = 20
    """The most tokens that the model writes."""
    beam: int | None = None
    """Beam width of an encoder-decoder; None uses the model's generation settings."""
    sample: bool = False
    """Draw tokens at random; otherwise the most likely one is taken, whatever temperature, top_k and top_p are."""
    temperature: float = 1.0
    """The logits are divided by this."""
    top_k: int = 0
    """Draw from this many likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this total probability."""
    ablate: tuple[str, ...] = ()
    """Parts of the model that are switched off, such as "encoder.layers.0.self_attn.head.3". Layers and heads are
    counted from 0."""
    parts: tuple[str, ...] = PARTS
    """The parts of the explanation to compute."""
    position: int | None = None
    """The written token that is attributed to the input, as an index of the target; None is the last one."""

    def __post_init__(self) -> None:
        check_positive("max_tokens", self.max_tokens)
        if self.beam is not None:
            check_positive("beam", self.beam)
        for name in ("ablate", "parts"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
                raise ValueError(f"{name}={shown(value)}: expected a list of names")
            object.__setattr__(self, name, tuple(value))
        for part in self.parts:
            if part not in PARTS:
                raise ValueError(f"parts holds {part!r}: {suggestion(part, PARTS)}")
        if self.target is not None and not isinstance(self.target, str):
            raise ValueError(f"target={shown(self.target)}: expected a text")
        if self.position is not None and (isinstance(self.position, bool) or not isinstance(self.position, int)):
            raise ValueError(f"position={shown(self.position)}: expected a whole number")
        self.generation(GenerationConfig(), max_new_tokens=1)  # raises for a wrong temperature, top_k or top_p

    def generation(self, base: GenerationConfig, *, max_new_tokens: int) -> GenerationConfig:
        """Return the settings of a pipeline with these options."""
        beams = 1 if self.sample else self.beam or base.num_beams
        config = replace(
            base,
            max_new_tokens=min(max_new_tokens, base.max_new_tokens),
            min_new_tokens=min(base.min_new_tokens, max_new_tokens, base.max_new_tokens),
            # A text that is only shown up to here has not ended.
            forced_eos_token_id=base.forced_eos_token_id if max_new_tokens >= base.max_new_tokens else None,
            num_beams=beams,
            num_return_sequences=1,
            num_beam_groups=1 if beams == 1 else base.num_beam_groups,
            diversity_penalty=0.0 if beams == 1 else base.diversity_penalty,
            eos_token_id=() if beams > 1 else base.eos_token_id,
            stop_strings=(),
            prompt_lookup_num_tokens=0,
            do_sample=False,
            **{
                name: getattr(GenerationConfig, name)
                for name in ("temperature", "top_k", "top_p", "min_p", "typical_p")
            },
        )
        if not self.sample:
            return config
        return replace(config, do_sample=True, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ExplainOptions":
        """Return the options with these values. An unknown name raises a ValueError with a suggestion."""
        names = [item.name for item in fields(cls)]
        for name in values:
            if name not in names:
                raise ValueError(f"unknown option {shown(name)}: {suggestion(str(name), names)}")
        return cls(**values)

    def to_json(self, text: str) -> dict[str, Any]:
        """Return the options and the text as JSON values."""
        return {"text": text, **asdict(self), "ablate": list(self.ablate), "parts": list(self.parts)}
