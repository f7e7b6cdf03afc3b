import asyncio
import json

from glassformer.serve.body_limit import BODY, BodyLimit


def send_body(messages, *, max_bytes=10, max_seconds=5.0, headers=(), scope=()):
    """Pass a request through the middleware, and return the status it answers with and the body the app has read."""
    waiting, sent, read = list(messages), [], []

    async def app(scope, receive, send):
        read.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": list(headers), "method": "POST", **dict(scope)}
    asyncio.run(BodyLimit(app, max_bytes, max_seconds)(scope, receive, send))
    status = sent[0]["status"] if sent else None
    return status, read, sent, scope


def part(data, more=False):
    return {"type": "http.request", "body": data, "more_body": more}


def test_a_body_arrives_whole():
    status, read, _, scope = send_body([part(b"123", True), part(b"456")])
    assert (status, read) == (200, [b"123456"])
    assert BODY not in scope


def test_the_log_gets_the_body_if_it_wants_it():
    assert send_body([part(b"123")], scope={BODY: b""})[3][BODY] == b"123"


def test_a_body_that_is_too_large_is_refused():
    status, read, sent, _ = send_body([part(b"123456", True), part(b"789012", True)])
    assert (status, read) == (413, [])
    assert "expected at most 10 (--max-body)" in json.loads(sent[1]["body"])["error"]["message"]
    assert send_body([], headers=[(b"content-length", b"99999999999999999999999")])[0] == 413


def test_a_body_that_is_too_slow_is_refused():
    assert send_body([part(b"1", True)], max_seconds=0.05)[0] == 408


def test_a_client_that_goes_gets_no_answer():
    status, read, _, _ = send_body([part(b"1", True), {"type": "http.disconnect"}])
    assert (status, read) == (None, [])
