"""`/v1/embeddings`: turn texts into vectors."""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from glassformer.pipelines.embedder import Embedder
from glassformer.serve.access_log import note_fact
from glassformer.serve.api_errors import ApiError, bad_value
from glassformer.serve.event_stream import answer_unless_gone
from glassformer.serve.openai_schemas import EmbeddingRequest
from glassformer.serve.served_models import ServedModel
from glassformer.serve.server_state import ServerState, state_of
from glassformer.serve.text_jobs import answer_in_jobs

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/embeddings", summary="Turn texts into vectors")
async def create_embeddings(body: EmbeddingRequest, request: Request) -> JSONResponse:
    """Return a vector of length 1 for each text."""
    server = state_of(request)
    return JSONResponse(await answer_unless_gone(request, _embed(server, body, request), server.limits.timeout))


async def _embed(server: ServerState, body: EmbeddingRequest, request: Request) -> dict[str, Any]:
    texts = [body.input] if isinstance(body.input, str) else body.input
    if len(texts) > server.limits.max_inputs:
        raise ApiError(400, f"input has {len(texts)} texts: expected at most {server.limits.max_inputs}", param="input")
    async with server.shelf.lend(body.model) as model:
        if not model.can_embed:
            raise bad_value("model", body.model, "a model that makes vectors of texts, such as an encoder")
        size = model.pipeline.model.config.d_model
        if body.dimensions not in (None, size):
            raise bad_value("dimensions", body.dimensions, f"{size}, the size of the vectors of {body.model}")
        check_queue(server)
        count = await server.prepare(_count_tokens, model, texts)
        kind = "embed", model.name
        found = await answer_in_jobs(server.compute, kind, model.pipeline.model, texts, _embedder(model))
    note_fact(request.scope, model=body.model, prompt_tokens=count)
    server.metrics.note_prompt(count, 0)
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
        for index, vector in enumerate(found)
    ]
    used = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": body.model, "usage": used}


def check_queue(server: ServerState) -> None:
    """Raise an ApiError with status 429 if as many requests wait as the server allows."""
    count, limit = server.n_waiting(), server.limits.max_queue
    if count >= limit:
        raise ApiError(
            429,
            f"{count} requests are waiting: expected fewer than {limit}; try again later",
            code="queue_full",
            headers={"Retry-After": "1"},
        )


def _embedder(model: ServedModel) -> Any:
    pipeline = model.pipeline
    return lambda texts: list(pipeline.embed(texts).float().cpu().numpy())


def _count_tokens(model: ServedModel, texts: list[str]) -> int:
    """Return the number of tokens of some texts. Raises an ApiError for a text that is longer than the model reads."""
    pipeline = model.pipeline
    if isinstance(pipeline, Embedder):
        limit = pipeline.max_len
        counts = [len(pipeline.tokenizer.encode(pipeline.default_prompt + text)) for text in texts]
    else:
        limit = pipeline.model.config.max_len
        counts = [len(one) for one in pipeline.reader.read([(text, None) for text in texts])]
    for number, count in enumerate(counts, 1):
        if limit is not None and count > limit:
            name = "the input" if len(texts) == 1 else f"input {number} of {len(texts)}"
            message = (
                f"{name} has {count} tokens: expected at most {limit}, the most that {model.name} reads; shorten it"
            )
            raise ApiError(400, message, param="input", code="context_length_exceeded")
    return sum(counts)


def _encoded(vector: "np.ndarray[Any, np.dtype[np.float32]]", encoding: str | None) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(number) for number in vector]
