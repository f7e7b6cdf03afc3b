"""The settings of one generation request: search, sampling and rules, with the names of HF's `generate`."""

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal

from glassformer.base.checks import check_positive, shown
from glassformer.base.names import suggestion


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """The settings of a request: greedy search by default, beam search if `num_beams` > 1, sampling if `do_sample`.

    >>> import glassformer as gf
    >>> gf.GenerationConfig(do_sample=True, temperature=0.8, top_p=0.95, max_new_tokens=100).top_p
    0.95
    """

    max_new_tokens: int = 256
    """Stop after this many new tokens."""
    min_new_tokens: int = 0
    """END is forbidden before this many new tokens."""
    max_source_ratio: float = 0.0
    """Encoder-decoders only: limit the new tokens to this many times the source tokens, plus ten; 0 sets no limit."""

    num_beams: int = 1
    """Hypotheses that beam search keeps at each step; 1 means greedy search or sampling."""
    num_return_sequences: int = 1
    """How many texts to return: the best of a beam search, or independent samples."""
    length_penalty: float = 1.0
    """A hypothesis's log-probability is divided by its length to this power; higher values favor longer texts."""
    coverage_penalty: float = 0.0
    """Weight of the penalty for source tokens that got little attention (Wu et al. 2016)."""
    early_stopping: bool | Literal["never"] = "never"
    """When a beam search stops: "never" once no hypothesis can still win, False once none would win with its current
    score, True once `num_beams` texts have ended."""
    num_beam_groups: int = 1
    """Diverse beam search: split the beam into this many groups; each avoids the tokens that earlier groups chose."""
    diversity_penalty: float = 0.0
    """Subtracted from a token's log-probability for each time that an earlier group chose the token in this step."""

    do_sample: bool = False
    """Draw each token at random by its probability, instead of taking the most likely one."""
    seed: int = 0
    """Seed of sampling; up to rounding, the same seed gives the same text in any batch."""
    temperature: float = 1.0
    """The logits are divided by this: below 1 makes likely tokens likelier, above 1 levels the probabilities."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0 means all."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens with this total probability (nucleus sampling, Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Sample from tokens with at least this fraction of the most likely token's probability."""
    typical_p: float = 1.0
    """Sample from the most typical tokens with this total probability (Meister et al. 2023)."""

    repetition_penalty: float = 1.0
    """Positive logits of tokens that already occurred are divided by this; negative ones are multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that were already generated."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it was already generated."""
    no_repeat_ngram_size: int = 0
    """No n-gram of this many tokens is generated twice."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens."""
    suppress_tokens: tuple[int, ...] = ()
    """Tokens that are never generated."""
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are never completed."""
    prefix: tuple[int, ...] = ()
    """The text starts with these tokens; they count as new tokens."""
    forced_eos_token_id: int | None = None
    """The token that a text gets in place of its last one if it reaches `max_new_tokens`; usually the one that ends a
    text."""
    eos_token_id: tuple[int, ...] = ()
    """Additional tokens that end a text; not for beam search."""
    stop_strings: tuple[str, ...] = ()
    """The text is cut before the first of these strings."""

    prompt_lookup_num_tokens: int = 0
    """Speculative decoding: propose up to this many tokens from an earlier place in the text and verify them in one
    step. The text does not change; not for beam search. 0 is off."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            check_positive(name, getattr(self, name))
        for name in _WHOLE:
            _check_whole(name, getattr(self, name))
        for name, low, high in _RANGES:
            _check_number(name, getattr(self, name), low, high)
        if not _number("temperature", self.temperature) > 0:
            raise ValueError(f"temperature={self.temperature}: expected more than 0; do_sample=False takes the best")
        if not _number("repetition_penalty", self.repetition_penalty) > 0:
            raise ValueError(f"repetition_penalty={self.repetition_penalty}: expected more than 0; 1 changes nothing")
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral):
            raise ValueError(f"seed={shown(self.seed)}: expected a whole number")
        if not isinstance(self.do_sample, bool):
            raise ValueError(f"do_sample={shown(self.do_sample)}: expected True or False")
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise ValueError(f"early_stopping={shown(self.early_stopping)}: expected True, False or 'never'")
        self._check_tokens()
        self._check_together()

    def _check_tokens(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise ValueError(f"logit_bias={shown(self.logit_bias)}: expected a table of tokens and numbers")
        for token, value in self.logit_bias.items():
            _check_whole("token of logit_bias", token)
            if not (isinstance(value, float) and value == -math.inf):  # which forbids a token
                _number(f"logit_bias[{token}]", value)
        for name in ("suppress_tokens", "prefix", "eos_token_id"):
            _check_run(name, getattr(self, name))
        if self.forced_eos_token_id is not None:
            _check_whole("forced_eos_token_id", self.forced_eos_token_id)
        for run in _several("bad_words_ids", self.bad_words_ids):
            _check_run("bad_words_ids", run)
            if not run:
                raise ValueError("bad_words_ids holds an empty run: expected at least one token in each")
        for text in _several("stop_strings", self.stop_strings):
            if not isinstance(text, str):
                raise ValueError(f"stop_strings holds {shown(text)}: expected strings")
            if not text:
                raise ValueError("stop_strings holds an empty string: expected at least one character in each")

    def forced_token(self, n_written: int) -> int | None:
        """Return the token that must follow after `n_written` new tokens; None if there is no such rule."""
        if self.forced_eos_token_id is not None and n_written == self.max_new_tokens - 1:
            return self.forced_eos_token_id
        return self.prefix[n_written] if n_written < len(self.prefix) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as JSON values."""
        defaults = _defaults()
        changed = {name: value for name, value in vars(self).items() if value != defaults[name]}
        if "logit_bias" in changed:
            # JSON has no infinity.
            changed["logit_bias"] = {
                str(token): _FORBIDDEN if value == -math.inf else value for token, value in self.logit_bias.items()
            }
        return changed

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "GenerationConfig":
        """Return the config of a `to_dict` result. An unknown key raises ValueError with a suggestion."""
        names = [item.name for item in fields(cls)]
        for name in values:
            if name not in names:
                raise ValueError(f"unknown setting {shown(name)}: {suggestion(name, names)}")
        known = dict(values)
        for name in ("suppress_tokens", "prefix", "eos_token_id", "stop_strings"):
            if name in known:
                known[name] = tuple(_several(name, known[name]))
        if "bad_words_ids" in known:
            runs = _several("bad_words_ids", known["bad_words_ids"])
            known["bad_words_ids"] = tuple(tuple(_several("bad_words_ids", run)) for run in runs)
        if "logit_bias" in known:
            known["logit_bias"] = _read_bias(known["logit_bias"])
        return cls(**known)

    def _check_together(self) -> None:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens={self.min_new_tokens}: expected at most max_new_tokens={self.max_new_tokens}"
            )
        if len(self.prefix) > self.max_new_tokens:
            raise ValueError(
                f"prefix has {len(self.prefix)} tokens: expected at most max_new_tokens={self.max_new_tokens}"
            )
        if self.eos_token_id and self.num_beams > 1:
            raise ValueError(f"eos_token_id with num_beams={self.num_beams}: expected one or the other")
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample with num_beams={self.num_beams}: expected one or the other")
        if not self.do_sample:
            for name in _CHANCES:
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(f"{name}={getattr(self, name)} without do_sample=True, where chance has no say")
            if self.num_return_sequences > self.num_beams:
                raise ValueError(
                    f"num_return_sequences={self.num_return_sequences}: expected at most num_beams={self.num_beams}"
                )
        if self.prompt_lookup_num_tokens and self.num_beams > 1:
            raise ValueError(
                f"prompt_lookup_num_tokens={self.prompt_lookup_num_tokens} with num_beams={self.num_beams}: "
                "expected greedy search or sampling"
            )
        if self.stop_strings and self.num_beams > 1:
            raise ValueError(f"stop_strings with num_beams={self.num_beams}: expected greedy search or sampling")
        if self.num_beams % self.num_beam_groups:
            raise ValueError(
                f"num_beam_groups={self.num_beam_groups}: expected a divisor of num_beams={self.num_beams}"
            )
        if self.diversity_penalty and self.num_beam_groups == 1:
            raise ValueError(f"diversity_penalty={self.diversity_penalty} with one group: expected num_beam_groups > 1")


@cache
def _defaults() -> dict[str, Any]:
    return vars(GenerationConfig())


def _check_whole(name: str, value: Any) -> None:
    if type(value) is int and 0 <= value <= _MAX_WHOLE:  # the check for Integral takes ten times as long
        return
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole:
        raise ValueError(f"{name}={shown(value)}: expected a whole number, 0 or more")
    if not 0 <= value <= _MAX_WHOLE:
        raise ValueError(f"{name}={shown(value)}: expected {'0 or more' if value < 0 else f'at most {_MAX_WHOLE}'}")


def _number(name: str, value: Any) -> float:
    """Return a finite number as a float; raise for anything else."""
    if type(value) is float and math.isfinite(value):
        return value
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    number = int(value) if isinstance(value, Integral) else float(value) if is_number else math.nan
    if not is_number or not abs(number) <= sys.float_info.max:  # so that NaN is refused too
        raise ValueError(f"{name}={shown(value)}: expected a finite number")
    return float(number)


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if not low <= _number(name, value) <= high:
        raise ValueError(f"{name}={value}: expected {low} to {high}")


def _several(name: str, values: Any) -> Collection[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Collection):
        raise ValueError(f"{name}={shown(values)}: expected a list")
    return values


def _check_run(name: str, tokens: Any) -> None:
    for token in _several(name, tokens):
        _check_whole(f"token of {name}", token)


def _read_bias(values: Any) -> dict[int, Any]:
    """Return `logit_bias` from a `to_dict` result: integer token ids, and -inf where `to_dict` wrote "-Infinity"."""
    if not isinstance(values, Mapping):
        raise ValueError(f"logit_bias={shown(values)}: expected a table of tokens and numbers")
    found = {}
    for token, value in values.items():
        if not (isinstance(token, int) or (isinstance(token, str) and token.isascii() and token.isdecimal())):
            raise ValueError(f"logit_bias has the token {shown(token)}: expected a whole number")
        if len(str(token)) > len(str(_MAX_WHOLE)):
            raise ValueError(f"logit_bias has the token {shown(token)}: expected at most {_MAX_WHOLE}")
        found[int(token)] = -math.inf if value == _FORBIDDEN else value
    return found


_MAX_WHOLE = 2**63 - 1
_FORBIDDEN = "-Infinity"
_POSITIVE = ("max_new_tokens", "num_beams", "num_return_sequences", "num_beam_groups")
_WHOLE = (*_POSITIVE, "min_new_tokens", "top_k", "no_repeat_ngram_size", "prompt_lookup_num_tokens")
_RANGES = (
    ("max_source_ratio", 0.0, 1e6),
    ("length_penalty", -30.0, 30.0),  # more, and the power of a length is no number
    ("coverage_penalty", 0.0, 1e6),
    ("diversity_penalty", 0.0, 1e6),
    ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
)
_CHANCES = ("temperature", "top_k", "top_p", "min_p", "typical_p")
