"""`/v1/models`: which models the server has, and what each can do."""

from typing import Any

from fastapi import APIRouter, Request

from glassformer.serve.served_models import ServedModel
from glassformer.serve.server_state import state_of

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models", summary="List the models")
async def list_models(request: Request) -> dict[str, Any]:
    """Return the models of the server, in the order of the command line."""
    models = state_of(request).shelf.models.values()
    return {"object": "list", "data": [describe(model) for model in models]}


@router.get("/v1/models/{name:path}", summary="Describe a model")
async def find_model(name: str, request: Request) -> dict[str, Any]:
    """Return one model."""
    return describe(state_of(request).shelf.find(name))


def describe(model: ServedModel) -> dict[str, Any]:
    """Return a model in OpenAI's form. `task`, `endpoints` and `max_tokens` are known once it is loaded."""
    found: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "glassformer",
        "loaded": model.pipeline is not None,
    }
    if model.pipeline is None:
        return found
    endpoints = [f"/v1/tasks/{model.name}"]
    if model.is_decoder:
        endpoints.append("/v1/completions")
        if model.pipeline.can_chat:
            endpoints.append("/v1/chat/completions")
    if model.can_embed:
        endpoints.append("/v1/embeddings")
    return {**found, "task": model.kind, "endpoints": endpoints, "max_tokens": model.pipeline.model.config.max_len}
