"""Answers that take a while: server-sent events, and whole answers, which both end when the client disconnects."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from glassformer.serve.api_errors import ApiError, as_api_error
from glassformer.serve.openai_schemas import GenerationFields
from glassformer.serve.server_state import ServerState, state_of

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx passes each event on at once
]


class StartedAnswer(Protocol):
    """An answer that is being written."""

    def whole(self, server: ServerState, request: Request) -> Coroutine[Any, Any, dict[str, Any]]:
        """Return the answer when it is complete."""

    def events(self, server: ServerState, request: Request, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield the answer as events while it is written, and at the end the token counts, if asked for."""


async def respond(
    request: Request,
    body: GenerationFields,
    start: Callable[[ServerState, AsyncExitStack], Coroutine[Any, Any, StartedAnswer]],
) -> Response:
    """Return the response to a request: its whole answer, or a stream of events.

    Args:
        start: Starts the answer. What it enters into the stack is closed when the answer ends, for whatever reason.
    """
    server = state_of(request)
    timeout = server.limits.timeout
    stack = AsyncExitStack()
    try:
        if body.stream and server.shelf.is_loaded(body.model):
            # This takes little time, and `EventStream` notices a client that disconnects meanwhile.
            async with asyncio.timeout(timeout):
                answer = await start(server, stack)
        else:
            answer = await answer_unless_gone(request, start(server, stack), timeout)
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            return EventStream(answer.events(server, request, with_usage), stack, timeout)
        whole = await answer_unless_gone(request, answer.whole(server, request), timeout)
    except BaseException:
        await stack.aclose()
        raise
    await stack.aclose()
    return JSONResponse(whole)


def as_event(value: Any) -> bytes:
    """Return a JSON value as a server-sent event."""
    return b"data: " + _encoded(value) + b"\n\n"


def _encoded(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("utf-8", "replace")


class ChunkFormat:
    """Writes the events of one answer in OpenAI's form. What is the same in all of them is written once.

    Args:
        head: The fields that begin each event, such as `id` and `model`.
        with_usage: Whether each event has the field `usage`, which is null except in the last one.
    """

    def __init__(self, head: dict[str, Any], *, with_usage: bool):
        self._before = b"data: " + _encoded(head)[:-1] + b', "choices": ['
        self._after = b'], "usage": null}\n\n' if with_usage else b"]}\n\n"

    def choice(self, choice: dict[str, Any]) -> bytes:
        """Return the event of one piece of one text."""
        return self._before + _encoded(choice) + self._after

    def usage(self, used: dict[str, Any]) -> bytes:
        """Return the event that counts the tokens."""
        return self._before + b'], "usage": ' + _encoded(used) + b"}\n\n"


class EventStream(Response):
    """A response of server-sent events, which come from a generator of one or more events at a time.

    It ends with the event `[DONE]`; a generator may add that itself, to save a message. An error after the first event
    is sent as an event, because the status has been sent already. `stack` is closed when the stream ends, for whatever
    reason: it ends, the client disconnects, or it takes longer than `timeout` seconds.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], stack: AsyncExitStack, timeout: float):
        super().__init__()
        self._events, self._stack, self._timeout = events, stack, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await self._events.aclose()
            await self._stack.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        last = DONE
        try:
            async with asyncio.timeout(self._timeout):
                async for events in self._events:
                    if events.endswith(DONE):  # line breaks in a text are escaped
                        last = events
                        break
                    await send({"type": "http.response.body", "body": events, "more_body": True})
        except Exception as error:
            last = as_event(as_api_error(error).body())
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def answer_unless_gone(request: Request, answer: Coroutine[Any, Any, T], timeout: float) -> T:
    """Return the result of a coroutine. It is canceled if the client disconnects or after `timeout` seconds."""
    working = asyncio.ensure_future(answer)
    leaving = asyncio.create_task(_disconnect(request.receive))
    try:
        done, _ = await asyncio.wait((working, leaving), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            return working.result()
        if leaving in done:
            raise ApiError(499, "the client has disconnected")
        raise TimeoutError
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
