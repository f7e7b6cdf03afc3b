"""Hostile requests: none gets a status of 500, none harms another client, and the process lives on."""

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, settings

POSTS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/tasks/translator", "/v1/tasks/chat")
GOOD = {
    "/v1/completions": {"model": "chat", "prompt": "the", "max_tokens": 3},
    "/v1/chat/completions": {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/embeddings": {"model": "embedder", "input": "the"},
    "/v1/tasks/translator": {"input": "the cat"},
    "/v1/tasks/chat": {"input": "the", "max_tokens": 3},
}
DEEP = "[" * 5000 + "]" * 5000
VALUES = [
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 10**40, 1e308, 0.5, "", "x", "\x00", "\ud7ff\U0010ffff", "💥" * 50,
    [], [[]], [1, "a"], {}, {"type": "text"}, {"a": {"b": {"c": []}}}, ["x"] * 1000, "x" * 5000, "</s>", "{{ 1 }}",
    "../../etc/passwd", [[1, 2], "x"], {"role": "user"}, [{"role": "user", "content": [{"type": "image_url"}]}],
    {"type": "regex", "pattern": "(a|a)*" * 50}, {"type": "regex", "pattern": "x{99999}{99999}"},
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
    {"type": "json_schema", "json_schema": {"schema": {"allOf": [{"$ref": "#"}], "minItems": -5, "pattern": "("}}},
    {"1": "x"}, {"999999999": 1}, {"-1": 1},
]  # fmt: skip
FIELDS = {
    "model", "prompt", "messages", "input", "max_tokens", "max_completion_tokens", "n", "stop", "seed", "temperature",
    "top_p", "top_k", "min_p", "logit_bias", "logprobs", "top_logprobs", "echo", "stream", "stream_options",
    "response_format", "tools", "tool_choice", "presence_penalty", "suffix", "best_of", "frequency_penalty",
    "repetition_penalty", "encoding_format", "dimensions", "n_best", "beam", "scores", "alignment", "user", "nonsense",
}  # fmt: skip


def hostile(chance):
    """Return the path, body and headers of a hostile request."""
    path = chance.choice(POSTS)
    kind = chance.random()
    if kind < 0.75:
        body = dict(GOOD[path])
        for _ in range(chance.randint(1, 3)):
            body[chance.choice(sorted(FIELDS))] = chance.choice(VALUES)
        return path, json.dumps(body).encode(), {}
    text = json.dumps(GOOD[path])
    raw = [
        text.replace('"the"', "NaN").encode(),
        text.replace("3", "Infinity").encode(),
        text.replace("3", "9" * 5000).encode(),
        text.replace('"chat"', DEEP).encode(),
        DEEP.encode(),
        b'{"a":' * 3000 + b"1" + b"}" * 3000,
        text.encode("utf-16"),
        text.encode()[:-5],
        b"\xff\xfe" + text.encode(),
        text.replace("the", "\\ud800").encode(),
        text.replace("hi", "\\ud800").encode(),
        b"",
        b"null",
        b'"x"',
        b"[]",
        b" " * 100_000,
        text.replace('"model"', '"model": "x", "model"').encode(),
        b"x" * 2_000_000,
    ]
    headers = chance.choice([{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json; charset=utf-16"}])
    return path, chance.choice(raw), headers


def test_hostile_requests_get_an_answer_below_500(server, count):
    chance = random.Random(11)
    requests = [hostile(chance) for _ in range(count(250, 5000))]

    def ask(request):
        path, body, headers = request
        try:
            return server.ask(path, body, headers=headers, timeout=120)
        except OSError as error:  # the server may close the connection of a body that is too large
            return 413 if len(body) > 1_000_000 else error, {}, None

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, requests))
    for request, (status, _, body) in zip(requests, answers, strict=True):
        assert isinstance(status, int), (request, status)
        assert status < 500, (request, body)
        if status >= 400 and isinstance(body, dict):
            assert body["error"]["message"], request
    statuses = {status for status, _, _ in answers}
    assert {200, 400} <= statuses
    assert server.process.poll() is None
    assert server.ask("/v1/completions", GOOD["/v1/completions"])[0] == 200


def test_broken_http_harms_nobody(server):
    heads = [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 1000,
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /%00%ff%2e%2e HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
    ]
    for head in heads:
        with socket.create_connection(("127.0.0.1", server.port), 10) as client:
            client.sendall(head)
            client.settimeout(1)
            try:
                answer = client.recv(100)
            except OSError:
                answer = b""
            assert not answer.startswith(b"HTTP/1.1 5"), (head[:80], answer)
    assert server.ask("/health")[0] == 200


def test_slow_and_half_open_clients_do_not_hold_up_others(server):
    clients = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(60)]
    for number, client in enumerate(clients):
        if number % 3:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + b"Content-Length: 50\r\n\r\n{" * (number % 2)
            )
    begin = time.monotonic()
    assert server.ask("/v1/completions", GOOD["/v1/completions"])[0] == 200
    assert time.monotonic() - begin < 20
    for client in clients:
        client.close()
    server.wait_until_idle()


@pytest.fixture(scope="module")
def schema(server):
    schemathesis = pytest.importorskip("schemathesis")
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.filterwarnings("ignore")
def test_requests_made_from_the_documented_schema_get_no_server_error(server, schema, count):
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path in ("/docs",):
            continue

        @settings(
            max_examples=count(8, 150), deadline=None, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @_given(operation.as_strategy())
        def check(case):
            response = case.call(timeout=60)
            assert response.status_code < 500, response.text

        check()


def _given(strategy):
    from hypothesis import given

    return given(case=strategy)
