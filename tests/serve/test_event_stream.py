import asyncio
import json
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from glassformer.serve.api_errors import ApiError
from glassformer.serve.event_stream import EventStream, answer_unless_gone, as_event


async def never():
    await asyncio.sleep(60)


async def gone():
    return {"type": "http.disconnect"}


def stream(values, *, receive=never, timeout=5.0):
    """Send a stream, and return what was sent and whether its stack was closed."""
    sent, closed = [], []

    async def send(message):
        sent.append(message)
        await asyncio.sleep(0)

    async def run():
        stack = AsyncExitStack()
        stack.callback(closed.append, True)
        await asyncio.wait_for(EventStream(values(), stack, timeout)({}, receive, send), 10)

    asyncio.run(run())
    return b"".join(message.get("body", b"") for message in sent).decode(), closed


def test_values_are_sent_as_events():
    async def values():
        yield {"a": "ü\n"}
        yield {"b": 1}

    text, closed = stream(values)
    assert text == 'data: {"a": "ü\\n"}\n\ndata: {"b": 1}\n\ndata: [DONE]\n\n'
    assert closed


def test_an_error_in_the_middle_is_an_event():
    async def values():
        yield 1
        raise ValueError("too long")

    text, closed = stream(values)
    first, second, _ = text.split("\n\n")
    assert first == "data: 1"
    assert json.loads(second.removeprefix("data: "))["error"]["message"] == "too long"
    assert closed


def test_a_stream_ends_when_the_client_goes_or_the_time_is_up():
    ended = []

    async def values():
        try:
            yield 1
            await never()
        finally:
            ended.append(True)

    assert stream(values, receive=gone)[1]
    text, closed = stream(values, timeout=0.05)
    assert closed
    assert "--timeout" in text
    assert len(ended) >= 1


def test_text_that_is_no_utf8_is_replaced():
    assert as_event("\ud800") == b'data: "?"\n\n'


def answer(coroutine, receive=never, timeout=5.0):
    return asyncio.run(answer_unless_gone(SimpleNamespace(receive=receive), coroutine, timeout))


def test_a_whole_answer_is_given_up_when_the_client_goes():
    canceled = []

    async def work():
        try:
            await never()
        except asyncio.CancelledError:
            canceled.append(True)
            raise

    async def ready():
        return 3

    assert answer(ready()) == 3
    with pytest.raises(ApiError, match="disconnected"):
        answer(work(), gone)
    with pytest.raises(TimeoutError):
        answer(work(), timeout=0.05)
    assert canceled == [True, True]
