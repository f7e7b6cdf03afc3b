import asyncio
import json

import pytest
from fastapi.responses import JSONResponse

from glassformer.serve.direct_route import DirectEndpoint, DirectRoute
from glassformer.serve.openai_schemas import EmbeddingRequest

BODY = {"model": "m", "input": "a text"}


async def answer(body, request):
    if body.model == "bad":
        raise ValueError("bad model")
    return JSONResponse({"direct": body.input, "path": request.scope["route"].path})


async def other(scope, receive, send):
    message = await receive()
    await JSONResponse({"other": message["body"].decode()})(scope, receive, send)


def ask(body, path="/v1/x", method="POST", kind=b"application/json"):
    """Return the status and the JSON of a response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent, messages = [], [{"type": "http.request", "body": data, "more_body": False}]

    async def receive():
        return messages.pop()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": [(b"content-type", kind)]}
    route = DirectRoute(other, {"/v1/x": DirectEndpoint(EmbeddingRequest, answer)})
    asyncio.run(route(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_valid_request_is_answered_directly():
    assert ask(BODY) == (200, {"direct": "a text", "path": "/v1/x"})
    assert ask(BODY, kind=b"Application/JSON; charset=utf-8")[1]["direct"] == "a text"


def test_errors_have_the_form_of_the_api():
    status, found = ask({**BODY, "model": "bad"})
    assert status == 400
    assert found["error"]["message"] == "bad model"


@pytest.mark.parametrize("body", [b"{", b"", b"[" * 100_000, b'{"model": 1, "input": "a"}', b"\xff", b"NaN"])
def test_what_is_not_valid_goes_on_with_its_body(body):
    try:
        expected = body.decode()
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):  # by `other`
            ask(body)
        return
    assert ask(body) == (200, {"other": expected})


def test_other_requests_go_on():
    for changes in ({"path": "/v1/y"}, {"method": "GET"}, {"kind": b"text/plain"}):
        assert ask(BODY, **changes) == (200, {"other": json.dumps(BODY)})
