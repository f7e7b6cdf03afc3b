"""From the fields of a request to the settings of the engine."""

import secrets
from collections.abc import Mapping
from typing import Any

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.generator import Generator
from glassformer.serve.api_errors import ApiError, bad_value
from glassformer.serve.openai_schemas import GenerationFields
from glassformer.serve.server_options import RequestLimits

GREEDY_BELOW = 1e-4
"""A temperature below this takes the most likely token: the logits divided by it would be infinite."""


def generation_config(body: GenerationFields, pipeline: Generator, n_prompt: int, max_tokens: int) -> GenerationConfig:
    """Return the engine's settings for a request with a prompt of `n_prompt` tokens and a checked `max_tokens`.

    The text ends where the model's own settings say, and where the context of the model ends. Greedy search for
    several texts writes one, which the answer repeats.
    """
    check_prompt_length(body, pipeline, n_prompt)
    settings: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": 0,
        "eos_token_id": pipeline.generation.eos_token_id,
        "suppress_tokens": pipeline.generation.suppress_tokens,
        "stop_strings": stop_strings(body),
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "repetition_penalty": body.repetition_penalty or 1.0,
        "logit_bias": _logit_bias(body.logit_bias or {}, pipeline.model.config.vocab_size),
    }
    if not getattr(pipeline, "has_documents", True):  # it has never seen special tokens: their logits mean nothing
        settings["suppress_tokens"] = (*settings["suppress_tokens"], *sorted(pipeline.tokenizer.special_ids))
    if not is_greedy(body):
        settings |= {
            "do_sample": True,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "top_k": body.top_k or 0,
            "min_p": body.min_p or 0.0,
            "seed": secrets.randbits(63) if body.seed is None else body.seed,
            "num_return_sequences": body.n or 1,
        }
    return GenerationConfig(**settings)


def check_prompt_length(body: GenerationFields, pipeline: Generator, n_prompt: int) -> None:
    """Raise an ApiError if a prompt of `n_prompt` tokens is longer than the model reads."""
    limit = pipeline.model.config.max_len
    if limit is not None and n_prompt > limit:
        raise ApiError(
            400,
            f"the prompt has {n_prompt} tokens: expected at most {limit}, the most that {body.model} reads",
            param="messages" if hasattr(body, "messages") else "prompt",
            code="context_length_exceeded",
        )


def is_greedy(body: GenerationFields) -> bool:
    """Return whether a request takes the most likely token each time, so that all of its texts are the same."""
    return body.temperature is not None and body.temperature < GREEDY_BELOW


def check_max_tokens(field: str, asked: int | None, default: int, limits: RequestLimits) -> int:
    """Return how many tokens may be written. Raises an ApiError if a request asks for more than the server allows."""
    if asked is None:
        return min(default, limits.max_tokens)
    if asked > limits.max_tokens:
        raise bad_value(field, asked, f"at most {limits.max_tokens} (--max-tokens of the server)")
    return asked


def check_count(body: GenerationFields, max_rows: int) -> int:
    """Return how many texts a request asks for. Raises an ApiError if a batch cannot hold so many."""
    count = body.n or 1
    if count > max_rows:
        raise bad_value("n", count, f"at most {max_rows} (--max-rows of the server)")
    return count


def stop_strings(body: GenerationFields) -> tuple[str, ...]:
    """Return the stop strings of a request, which may be one string, a list or none."""
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def _logit_bias(values: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    found = {}
    for key, value in values.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < vocab_size):
            raise bad_value("logit_bias", key, f"token ids from 0 to {vocab_size - 1} as keys")
        found[int(key)] = float("-inf") if value <= -100 else value
    return found
