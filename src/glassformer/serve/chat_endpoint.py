"""`/v1/chat/completions`: answer conversations, by the model's own chat template."""

import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from glassformer.serve.api_errors import ApiError, bad_value
from glassformer.serve.engine_run import EngineRun, WrittenPiece
from glassformer.serve.event_stream import DONE, ChunkFormat, respond
from glassformer.serve.generation_fields import check_max_tokens
from glassformer.serve.log_prob_formats import TokenScores, as_chat_log_probs
from glassformer.serve.openai_schemas import ChatMessage, ChatRequest
from glassformer.serve.request_ids import new_id
from glassformer.serve.served_models import ServedModel
from glassformer.serve.server_state import ServerState
from glassformer.serve.text_generation import (
    check_decoder,
    copies_of,
    finish_reason,
    scores_of,
    scores_of_piece,
    start_run,
    usage_of,
)
from glassformer.serve.tool_calls import ToolCallFilter, parse_tool_calls

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/chat/completions", summary="Answer a conversation")
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    return await respond(request, body, lambda server, stack: _start(server, body, stack))


async def _start(server: ServerState, body: ChatRequest, stack: AsyncExitStack) -> "_Answer":
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs has no effect: expected logprobs=true with it", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options has no effect: expected stream=true with it", param="stream_options")
    model = await stack.enter_async_context(server.shelf.lend(body.model))
    check_decoder(model)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = check_max_tokens(field, asked, server.limits.default_tokens, server.limits)
    prompt = await server.prepare(_read, body, model, n_characters=_count_characters(body))
    n_top = (body.top_logprobs or 0) if body.logprobs else None
    run = await start_run(server, model, body, [prompt], max_tokens, n_top=n_top)
    stack.callback(run.cancel)
    return _Answer(body, model, run)


def _read(body: ChatRequest, model: ServedModel) -> list[int]:
    """Return the token ids of a conversation, by the model's chat template."""
    from glassformer.text.chat_rendering import render_chat  # imports jinja2

    pipeline = model.pipeline
    template = pipeline.tokenizer.chat_template
    if template is None:
        raise bad_value("model", model.name, "a model with a chat template; this one answers /v1/completions")
    tools = None
    if body.tools and body.tool_choice != "none":
        if not re.search(r"\btools\b", template):
            raise ApiError(400, f"tools: the chat template of {model.name} knows none; leave them out", param="tools")
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools]
    try:
        return render_chat(list(map(_message, body.messages)), template, pipeline.tokenizer, variables={"tools": tools})
    except ValueError as error:
        raise ApiError(400, f"messages: {error}", param="messages") from error


def _count_characters(body: ChatRequest) -> int | None:
    """Return the length of a conversation of plain texts; None if it has other parts, such as tools."""
    texts = [message.content for message in body.messages if message.tool_calls is None]
    if body.tools or len(texts) < len(body.messages) or not all(isinstance(text, str) for text in texts):
        return None
    return sum(len(text) for text in texts if isinstance(text, str))


def _message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as chat templates read it: its text as one string, and the arguments of calls as objects."""
    parts = message.content
    text = parts if isinstance(parts, str) else "".join(part.text for part in parts or ())
    found: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": text}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
            for call in message.tool_calls
            for arguments in [_arguments(call.function.arguments)]
        ]
    return found


def _arguments(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


def _first_choice(index: int) -> dict[str, Any]:
    """Return the choice of the event that begins a text."""
    return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}


class _Answer:
    """The answer to a conversation, on its way."""

    def __init__(self, body: ChatRequest, model: ServedModel, run: EngineRun):
        self.body, self.model, self.run = body, model, run
        self.copies = copies_of(body)
        self._begun: set[int] = set()
        """The indices of the texts of which a piece has been sent."""
        self.head = {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": None,
        }

    async def whole(self, server: ServerState, request: Request) -> dict[str, Any]:
        """Return the answer when all texts are complete."""
        await self.run.wait()
        choices = [self._choice(sample) for sample in range(self.body.n or 1)]
        used = usage_of(server, request.scope, self.model, self.run, self.copies)
        return {**self.head, "choices": choices, "usage": used}

    async def events(self, server: ServerState, request: Request, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield the texts as events while they are written.

        The opening events join the first pieces, and usage and [DONE] the last ones, to send fewer messages.
        """
        form = ChunkFormat(self.head, with_usage=with_usage)
        found = [form.choice(_first_choice(index)) for index in range(self.body.n or 1)]
        filters = [ToolCallFilter() if self.body.tools else None for _ in range(self.body.n or 1)]
        async for pieces in self.run.pieces():
            for piece in pieces:
                for index in range(piece.sample, piece.sample + self.copies):
                    found += map(form.choice, self._deltas(piece, index, filters[index]))
            if found and not self.run.has_ended:
                yield b"".join(found)
                found = []
        used = usage_of(server, request.scope, self.model, self.run, self.copies)
        if with_usage:
            found.append(form.usage(used))
        yield b"".join([*found, DONE])

    def _deltas(self, piece: WrittenPiece, index: int, calls: ToolCallFilter | None) -> list[dict[str, Any]]:
        """Return the choices of the events for a piece: its text and, at the end, the reason."""
        text = piece.text
        if text and index not in self._begun:
            self._begun.add(index)
            text = text.removeprefix(" ")  # an answer continues no text
        text = text if calls is None else calls.push(text)
        reason, delta = finish_reason(piece.reason), {}
        if reason is not None and calls is not None:
            rest, found = calls.finish()
            text += rest
            if found:
                delta, reason = {"tool_calls": found}, "tool_calls"
        logs = self._log_probs(scores_of_piece(piece)) if piece.tokens else None
        deltas = []
        if text or logs:
            deltas.append({"index": index, "delta": {"content": text}, "logprobs": logs, "finish_reason": None})
        if reason is not None:
            deltas.append({"index": index, "delta": delta, "logprobs": None, "finish_reason": reason})
        return deltas

    def _choice(self, sample: int) -> dict[str, Any]:
        (request,) = self.run.requests
        row = 0 if self.copies > 1 else sample
        found = request.texts[row]
        whole = (found.text or "").removeprefix(" ")
        message: dict[str, Any] = {"role": "assistant", "content": whole, "refusal": None}
        reason = finish_reason(found.reason) or "stop"
        if self.body.tools:
            text, calls = parse_tool_calls(whole)
            if calls:
                own = [{name: value for name, value in call.items() if name != "index"} for call in calls]
                message |= {"content": text or None, "tool_calls": own}
                reason = "tool_calls"
        logs = self._log_probs(scores_of(request, row))
        return {"index": sample, "message": message, "logprobs": logs, "finish_reason": reason}

    def _log_probs(self, scores: TokenScores) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        assert self.model.token_bytes is not None
        return as_chat_log_probs(scores, self.body.top_logprobs or 0, self.model.token_bytes)
