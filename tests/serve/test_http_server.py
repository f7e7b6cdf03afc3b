"""The process: signals, silent connections, and what happens to running requests when it ends."""

import asyncio
import json
import signal
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvicorn

from glassformer.serve import http_server
from glassformer.serve.http_server import PatientProtocol, open_socket
from serve.served import Served

LONG = {"model": "chat", "prompt": "the", "max_tokens": 400, "temperature": 0, "logit_bias": {"2": -100}}


def test_sigterm_under_load_finishes_running_requests_and_exits_0(model_paths):
    server = Served(model_paths["chat"], "--quiet")
    answers = []

    def ask(stream):
        data = json.dumps({**LONG, "stream": stream}).encode()
        request = urllib.request.Request(f"{server.url}/v1/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answers.append(response.read())

    threads = [threading.Thread(target=ask, args=(number % 2 == 0,)) for number in range(8)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 20
    while server.metric("glassformer_running_rows") < 8 and time.monotonic() < until:
        time.sleep(0.01)
    assert server.stop() == 0
    for thread in threads:
        thread.join(20)
    assert len(answers) == 8
    for answer in answers:
        if answer.startswith(b"data:"):
            assert answer.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(answer)["usage"]["completion_tokens"] == 400
    assert not [line for line in server.log if line.startswith("{")], "--quiet logs no requests"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), 1)


@pytest.fixture(scope="module")
def small(model_paths):
    more = ("--max-queue", 2, "--max-rows", 2, "--drain", 1, "--timeout", 30)
    found = Served(f"chat={model_paths['chat']}", *more)
    yield found
    found.stop()


def test_a_full_queue_is_reported_and_passes(small):
    body = {**LONG, "max_tokens": 60}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: small.ask("/v1/completions", body), range(12)))
    statuses = [status for status, _, _ in answers]
    assert {200, 429} == {*statuses}, statuses
    refused = next(answer for answer in answers if answer[0] == 429)
    assert refused[1]["Retry-After"] == "1"
    assert "more requests are waiting than the server allows (--max-queue)" in refused[2]["error"]["message"]
    assert small.ask("/v1/completions", body)[0] == 200


def test_requests_that_outlast_the_drain_are_given_up(small):
    with socket.create_connection(("127.0.0.1", small.port)) as client:  # a body that never ends
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        time.sleep(0.2)
        begin = time.monotonic()
        small.process.send_signal(signal.SIGINT)  # Ctrl-C ends a server as SIGTERM does
        assert small.process.wait(20) == 0
        assert time.monotonic() - begin < 15


def test_a_used_port_is_reported_with_what_to_do():
    with open_socket("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(OSError, match="choose another address or port"):
            open_socket("127.0.0.1", taken.getsockname()[1])


def test_the_parts_of_a_response_are_sent_at_once():
    """Without TCP_NODELAY, responses on a kept-alive connection arrive 40 ms late."""
    found = []

    class NoteOption(asyncio.Protocol):
        def connection_made(self, transport):
            accepted = transport.get_extra_info("socket")
            found.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    async def run():
        loop = asyncio.get_running_loop()
        with open_socket("127.0.0.1", 0) as listening:
            server = await loop.create_server(NoteOption, sock=listening)
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
            server.close()

    asyncio.run(run())
    assert found
    assert all(found)


def test_a_silent_connection_is_closed(monkeypatch):
    """In this process, with a short limit."""
    monkeypatch.setattr(PatientProtocol, "head_seconds", 0.2)

    async def app(scope, receive, send):
        await asyncio.sleep(0.4)  # longer than the limit: a request that has begun is not silent
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def run():
        config = uvicorn.Config(app, http=PatientProtocol, ws="none", lifespan="off", log_config=None)
        with open_socket("127.0.0.1", 0) as found:
            server = http_server.HttpServer(config, lambda: None)
            serving = asyncio.create_task(server.serve([found]))
            while not server.started:
                await asyncio.sleep(0.01)
            address = found.getsockname()
            silent, writer = await asyncio.open_connection(*address)
            assert await asyncio.wait_for(silent.read(), 5) == b""
            writer.close()
            half, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\nHost:")
            assert await asyncio.wait_for(half.read(), 5) == b""
            writer.close()
            whole, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await asyncio.wait_for(whole.readline(), 5)).startswith(b"HTTP/1.1 200")
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(run())
