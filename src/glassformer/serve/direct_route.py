"""Answer the most frequent requests without FastAPI's routing.

FastAPI's routing, dependencies and nested error handlers take as long as the rest of a short chat request. FastAPI
still documents the endpoints, and answers every request that is not valid, so that errors are the same.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.serve.api_errors import as_api_error


class DirectEndpoint(NamedTuple):
    """A function that answers the POST requests of a path, and the form of their bodies."""

    schema: type[BaseModel]
    answer: Callable[[Any, Request], Awaitable[Response]]


class DirectRoute:
    """ASGI middleware that calls the endpoints of some paths. Bodies must be whole, as `BodyLimit` passes them on."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, DirectEndpoint]):
        self._app, self._endpoints = app, endpoints
        self._routes = {path: SimpleNamespace(path=path) for path in endpoints}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        first = [await receive()]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        try:
            body = endpoint.schema.model_validate(json.loads(first[0].get("body", b"")))
        except (ValueError, RecursionError):  # FastAPI says why
            await self._app(scope, replay, send)
            return
        scope["route"] = self._routes[scope["path"]]  # for the access log
        try:
            response = await endpoint.answer(body, Request(scope, receive, send))
        except Exception as error:
            response = as_api_error(error).response()
        await response(scope, receive, send)


def _is_json(scope: Scope) -> bool:
    kind: bytes = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return kind.partition(b";")[0].strip().lower() == b"application/json"
