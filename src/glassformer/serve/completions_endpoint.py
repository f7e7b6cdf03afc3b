"""`/v1/completions`: continue texts."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from glassformer.serve.api_errors import ApiError, bad_value
from glassformer.serve.engine_run import EngineRun
from glassformer.serve.event_stream import DONE, ChunkFormat, respond
from glassformer.serve.generation_fields import check_max_tokens, check_prompt_length
from glassformer.serve.log_prob_formats import TokenScores, as_completion_log_probs
from glassformer.serve.openai_schemas import CompletionRequest
from glassformer.serve.prompt_scores import score_prompt
from glassformer.serve.request_ids import new_id
from glassformer.serve.served_models import ServedModel
from glassformer.serve.server_state import ServerState
from glassformer.serve.text_generation import (
    check_decoder,
    check_prompt_ids,
    copies_of,
    finish_reason,
    scores_of,
    scores_of_piece,
    start_run,
    usage,
    usage_of,
)

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/completions", summary="Continue texts")
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue one or several texts, whole or as a stream of events."""
    return await respond(request, body, lambda server, stack: _start(server, body, stack))


async def _start(server: ServerState, body: CompletionRequest, stack: AsyncExitStack) -> "_Answer":
    _check(body)
    model = await stack.enter_async_context(server.shelf.lend(body.model))
    check_decoder(model)
    max_tokens = check_max_tokens("max_tokens", body.max_tokens, 16, server.limits)
    if not max_tokens and not body.echo:
        raise bad_value("max_tokens", max_tokens, "at least 1, or echo=true for the prompt alone")
    size = len(body.prompt) if isinstance(body.prompt, str) else None
    prompts = await server.prepare(_read, body, model, server.limits.max_inputs, n_characters=size)
    answer = _Answer(body, model, prompts)
    if body.echo:
        answer.given = [model.pipeline.tokenizer.decode(prompt) for prompt in prompts]
        if body.logprobs is not None:
            await answer.score_prompts(server)
    if max_tokens:
        answer.run = await start_run(server, model, body, prompts, max_tokens, n_top=body.logprobs)
        stack.callback(answer.run.cancel)
    return answer


def _check(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad_value("best_of", body.best_of, f"the value of n, {body.n or 1}")
    if body.suffix:
        raise bad_value("suffix", body.suffix, "none: text between a prompt and a suffix is not supported")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options has no effect: expected stream=true with it", param="stream_options")


def _read(body: CompletionRequest, model: ServedModel, max_inputs: int) -> list[list[int]]:
    """Return the token ids of each prompt."""
    asked: Any = body.prompt
    several = asked if isinstance(asked, list) and not (asked and isinstance(asked[0], int)) else [asked]
    if not 1 <= len(several) <= max_inputs:
        raise ApiError(400, f"prompt has {len(several)} texts: expected 1 to {max_inputs}", param="prompt")
    ids = [prompt for prompt in several if not isinstance(prompt, str)]
    check_prompt_ids("prompt", ids, model.pipeline.model.config.vocab_size)
    return [model.pipeline.read(prompt) if isinstance(prompt, str) else prompt for prompt in several]


class _Answer:
    """The answer to a request for completions, on its way."""

    def __init__(self, body: CompletionRequest, model: ServedModel, prompts: list[list[int]]):
        self.body, self.model, self.prompts = body, model, prompts
        self.run: EngineRun | None = None
        """None if only the prompt is asked for."""
        self.given = [""] * len(prompts)
        """The text that is put before each completion: the prompt, if the request asks for its echo."""
        self.given_scores: list[TokenScores | None] = [None] * len(prompts)
        self.copies = copies_of(body)
        self.head = {
            "id": f"cmpl-{new_id()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }

    async def score_prompts(self, server: ServerState) -> None:
        """Compute the log-probabilities of the prompts, which the echo reports."""
        check_prompt_length(self.body, self.model.pipeline, max(map(len, self.prompts)))
        model, n_top = self.model.pipeline.model, self.body.logprobs or 0
        for number, prompt in enumerate(self.prompts):
            self.given_scores[number] = await score_prompt(server, model, prompt, n_top)

    async def whole(self, server: ServerState, request: Request) -> dict[str, Any]:
        """Return the answer when all texts are complete."""
        choices = []
        if self.run is not None:
            await self.run.wait()
        for number in range(len(self.prompts)):
            for sample in range(self.body.n or 1):
                choices.append(self._choice(number, sample))
        return {**self.head, "choices": choices, "usage": self._usage(server, request)}

    async def events(self, server: ServerState, request: Request, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield the texts as events while they are written. Usage and [DONE] join the last ones, to save a message."""
        form, found = ChunkFormat(self.head, with_usage=with_usage), list[bytes]()
        if self.body.echo:
            for number in range(len(self.prompts)):
                for sample in range(self.body.n or 1):
                    reason = "length" if self.run is None else None
                    choice = self._entry(number, sample, self.given[number], self.given_scores[number], 0, reason)
                    found.append(form.choice(choice))
        if self.run is not None:
            offsets: dict[tuple[int, int], int] = {}
            async for pieces in self.run.pieces():
                for piece in pieces:
                    scores = scores_of_piece(piece) if self.body.logprobs is not None else None
                    place = offsets.get(piece[:2], len(self.given[piece.prompt]))
                    offsets[piece[:2]] = place + len(piece.text)
                    if not piece.text and not scores and piece.reason is None:
                        continue
                    for copy in range(self.copies):
                        sample = piece.sample + copy
                        entry = self._entry(
                            piece.prompt, sample, piece.text, scores, place, finish_reason(piece.reason)
                        )
                        found.append(form.choice(entry))
                if found and not self.run.has_ended:
                    yield b"".join(found)
                    found = []
        used = self._usage(server, request)
        if with_usage:
            found.append(form.usage(used))
        yield b"".join([*found, DONE])

    def _choice(self, number: int, sample: int) -> dict[str, Any]:
        text, scores, reason = self.given[number], self.given_scores[number], "length"
        if self.run is not None:
            engine_request = self.run.requests[number]
            row = 0 if self.copies > 1 else sample
            found = engine_request.texts[row]
            text, reason = text + (found.text or ""), finish_reason(found.reason) or "stop"
            if self.body.logprobs is not None:
                own = scores_of(engine_request, row)
                scores = own if scores is None else scores.followed_by(own)
        offset = 0 if self.given_scores[number] is not None else len(self.given[number])
        return self._entry(number, sample, text, scores, offset, reason)

    def _entry(
        self, number: int, sample: int, text: str, scores: TokenScores | None, offset: int, reason: str | None
    ) -> dict[str, Any]:
        assert self.model.token_bytes is not None
        n_top = self.body.logprobs or 0
        logs = None if scores is None else as_completion_log_probs(scores, n_top, self.model.token_bytes, offset)
        index = number * (self.body.n or 1) + sample
        return {"index": index, "text": text, "logprobs": logs, "finish_reason": reason}

    def _usage(self, server: ServerState, request: Request) -> dict[str, Any]:
        if self.run is None:
            return usage(sum(map(len, self.prompts)))
        return usage_of(server, request.scope, self.model, self.run, self.copies)
