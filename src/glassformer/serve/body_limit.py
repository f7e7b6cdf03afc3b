"""Read the body of a request before it is parsed: at most so many bytes, in at most so much time."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.serve.api_errors import ApiError

BODY = "glassformer.body"
"""The entry of a request's scope into which its body is put, if the entry is there."""
BODY_SECONDS = 30.0
"""How long a client may take to send the body of a request."""


class BodyLimit:
    """ASGI middleware that answers a body that is too large with status 413, and one that is too slow with 408."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_seconds: float = BODY_SECONDS):
        self._app, self._max_bytes, self._max_seconds = app, max_bytes, max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on with its whole body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._max_seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            body = ApiError(408, f"the body did not arrive: expected all of it within {self._max_seconds:g} s")
        if body is None:  # the client has gone
            return
        if isinstance(body, ApiError):
            await body.response()(scope, receive, send)
            return
        if BODY in scope:  # the log wants it
            scope[BODY] = body
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> "bytes | ApiError | None":
        """Return the body, an error if it is too large, or None if the client disconnects."""
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if length.isdigit() and int(length[:20]) > self._max_bytes:
            return self._too_large(int(length[:20]))
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > self._max_bytes:
                return self._too_large(size)
        return b"".join(parts)

    def _too_large(self, size: int) -> ApiError:
        return ApiError(413, f"the body has {size} bytes or more: expected at most {self._max_bytes} (--max-body)")
