"""Start the engine for a request, and describe the result: what completions and chats have in common."""

from collections.abc import Sequence
from typing import Any

from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.step_loop import Reason
from glassformer.serve.access_log import note_fact
from glassformer.serve.api_errors import ApiError, bad_value
from glassformer.serve.engine_run import EngineRun, WrittenPiece
from glassformer.serve.generation_fields import check_count, generation_config, is_greedy
from glassformer.serve.log_prob_formats import TokenScores
from glassformer.serve.openai_schemas import GenerationFields
from glassformer.serve.served_models import ServedModel
from glassformer.serve.server_state import ServerState
from glassformer.serve.structured_output import constraint_maker


def check_decoder(model: ServedModel) -> None:
    """Raise an ApiError unless a model continues texts."""
    if not model.is_decoder:
        raise bad_value("model", model.name, f"a model that continues texts; use /v1/tasks/{model.name}")


async def start_run(
    server: ServerState,
    model: ServedModel,
    body: GenerationFields,
    prompts: Sequence[list[int]],
    max_tokens: int,
    *,
    n_top: int | None,
) -> EngineRun:
    """Submit the prompts of a request to the engine of its model.

    `n_top` is how many alternatives of each token are reported with the log-probabilities; None reports none of them.
    """
    check_count(body, server.batch.max_rows)
    longest = max(map(len, prompts))
    config = generation_config(body, model.pipeline, longest, max_tokens)
    make_constraint = None
    if body.response_format is not None:
        make_constraint = await server.prepare(constraint_maker, body.response_format, model)
    assert model.lane is not None
    requests = server.compute.submit(
        model.lane,
        prompts,
        config,
        with_log_probs=n_top is not None,
        n_top_log_probs=n_top or 0,
        make_constraint=make_constraint,
    )
    run = EngineRun(requests, streams=bool(body.stream))
    server.compute.open_run(model.lane, run)
    return run


def copies_of(body: GenerationFields) -> int:
    """Return how often each text is repeated in the answer: `n` times for greedy search, else once."""
    return (body.n or 1) if is_greedy(body) else 1


def scores_of(request: EngineRequest, sample: int) -> TokenScores:
    """Return the log-probabilities of a text that is complete, without those of END."""
    row = request.rows[sample]
    count = len(row.written)
    return TokenScores(row.written, row.log_probs[:count], row.top_log_probs[:count])


def scores_of_piece(piece: WrittenPiece) -> TokenScores:
    """Return the log-probabilities of a piece of a text."""
    return TokenScores(piece.tokens, piece.log_probs, piece.top_log_probs)


def finish_reason(reason: Reason | None) -> str | None:
    """Return why a text ended, in OpenAI's words."""
    return None if reason is None else "length" if reason == "length" else "stop"


def usage_of(server: ServerState, scope: Any, model: ServedModel, run: EngineRun, copies: int) -> dict[str, Any]:
    """Return the number of tokens that a request has read and written, and note it in the metrics and the log."""
    n_prompt = sum(len(request.tokens) for request in run.requests)
    n_cached = sum(request.n_reused for request in run.requests)
    n_written = copies * sum(len(row.written) for request in run.requests for row in request.rows)
    server.metrics.note_prompt(n_prompt, n_cached)
    note_fact(scope, model=model.name, prompt_tokens=n_prompt, completion_tokens=n_written)
    return usage(n_prompt, n_written, n_cached)


def usage(n_prompt: int, n_written: int = 0, n_cached: int = 0) -> dict[str, Any]:
    """Return the counts of tokens in OpenAI's form."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_written,
        "total_tokens": n_prompt + n_written,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


def check_prompt_ids(field: str, prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise an ApiError if prompts of token ids are empty or hold an id that is no token."""
    for prompt in prompts:
        if not prompt:
            raise ApiError(400, f"{field} holds an empty list: expected at least one token id", param=field)
        if max(prompt) >= vocab_size:
            raise bad_value(field, max(prompt), f"token ids from 0 to {vocab_size - 1}")
