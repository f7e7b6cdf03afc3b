import asyncio
import json
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from glassformer.serve.api_errors import ApiError
from glassformer.serve.event_stream import DONE, ChunkFormat, EventStream, answer_unless_gone, as_event


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
        yield as_event({"a": "ü\n"})
        yield as_event({"b": 1})

    async def with_end():
        yield as_event({"a": "ü\n"}) + as_event({"b": 1}) + DONE

    for given in (values, with_end):
        text, closed = stream(given)
        assert text == 'data: {"a": "ü\\n"}\n\ndata: {"b": 1}\n\ndata: [DONE]\n\n'
        assert closed


def test_chunks_are_written_as_whole_objects_are():
    head, choice = {"id": 'a"b', "model": "ü"}, {"index": 0, "delta": {"content": "\n\N{GRINNING FACE}"}}
    plain, counted = ChunkFormat(head, with_usage=False), ChunkFormat(head, with_usage=True)
    assert plain.choice(choice) == as_event({**head, "choices": [choice]})
    assert counted.choice(choice) == as_event({**head, "choices": [choice], "usage": None})
    assert counted.usage({"total_tokens": 3}) == as_event({**head, "choices": [], "usage": {"total_tokens": 3}})


def test_an_error_in_the_middle_is_an_event():
    async def values():
        yield as_event(1)
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
            yield as_event(1)
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
