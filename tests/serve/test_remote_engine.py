"""An engine in another process answers as one in this process does."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from glassformer.decoding import Engine, EngineFullError, GenerationConfig
from glassformer.models import preset
from glassformer.serve.api_errors import ApiError
from glassformer.serve.engine_frames import EngineFaultError, FrameSocket
from glassformer.serve.remote_engine import EngineLink, start_engine
from oracle import random_model
from serve import test_same_answers as same_answers
from serve.engine_pairs import remote_engine, wait_for
from serve.served import Served

MODEL = random_model(preset("tiny-llama"))


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, ids):
        return "".join(chr(97 + index % 26) for index in ids)


OPTIONS = {"end": 0, "max_rows": 6, "max_tokens": 240, "tokenizer": Letters()}
CONFIGS = [
    GenerationConfig(max_new_tokens=6),
    GenerationConfig(max_new_tokens=9, do_sample=True, seed=3, num_return_sequences=2),
    GenerationConfig(max_new_tokens=6, num_beams=3),
    GenerationConfig(max_new_tokens=20, do_sample=True, seed=5, stop_strings=("a", "bc", "e")),
    GenerationConfig(max_new_tokens=5, logit_bias={3: 2.5, 4: -float("inf")}, suppress_tokens=(5,)),
]


def test_texts_scores_and_reasons_are_those_of_a_local_engine():
    chance, plain = random.Random(0), Engine(MODEL, **OPTIONS)
    with remote_engine(MODEL, **OPTIONS) as (engine, _, steps):
        asked, expected = [], []
        for number in range(25):
            tokens = [chance.randrange(2, 40) for _ in range(chance.randrange(1, 9))]
            config, more = CONFIGS[number % 5], {}
            if number % 2 and config.num_beams == 1:
                more = {"with_log_probs": True, "n_top_log_probs": 2}
            asked.append(engine.submit(tokens, config, **more))
            expected.append(plain.submit(tokens, config, **more))
        wait_for(engine, asked)
        plain.run()
        for one, other in zip(asked, expected, strict=True):
            assert [text._replace(log_probs=None, score=None) for text in one.texts] == [
                text._replace(log_probs=None, score=None) for text in other.texts
            ]
            for row, twin in zip(one.rows, other.rows, strict=True):
                if not row.with_log_probs:
                    continue
                assert row.log_probs == pytest.approx(twin.log_probs, abs=1e-4)
                assert [[token for token, _ in top] for top in row.top_log_probs] == [
                    [token for token, _ in top] for top in twin.top_log_probs
                ]
        assert engine.is_idle
        assert engine.n_rows == 0
        assert 0 < max(steps) <= 6
        assert not engine._numbers


def test_a_canceled_request_leaves_the_other_process():
    long = GenerationConfig(max_new_tokens=200, min_new_tokens=200)
    with remote_engine(MODEL, **(OPTIONS | {"max_tokens": 1300})) as (engine, loop, _):
        requests = [engine.submit([5, number + 2], long) for number in range(7)]  # one of them waits
        while not requests[0].rows:
            engine.reports.wait(1)
            engine.step()
        for request in requests:
            request.cancel()
        wait_for(engine, requests)
        short = engine.submit([5], GenerationConfig(max_new_tokens=6, min_new_tokens=1))
        wait_for(engine, [short])
        assert short.texts[0].tokens
        assert engine.n_rows == 0
        assert loop.engine.is_idle
        assert not loop._requests


def test_limits_and_errors_are_raised_at_once_or_with_the_request():
    with remote_engine(MODEL, **OPTIONS) as (engine, loop, _):
        with pytest.raises(EngineFullError, match="expected at most"):
            engine.submit([5], GenerationConfig(do_sample=True, num_return_sequences=50))
        with pytest.raises(ValueError, match="expected ids"):
            engine.submit([10**6], CONFIGS[0])
        forbidden = GenerationConfig(suppress_tokens=tuple(range(MODEL.config.vocab_size)))
        failing = engine.submit([5], forbidden)
        wait_for(engine, [failing])
        assert isinstance(failing.error, ValueError)

        def fail():
            raise RuntimeError("broken")

        loop.engine._step = fail
        broken = engine.submit([5], CONFIGS[0])
        wait_for(engine, [broken])
        assert isinstance(broken.error, EngineFaultError)
        again = engine.submit([5], CONFIGS[0])  # with a new engine
        wait_for(engine, [again])
        assert again.error is None


def test_the_end_of_the_other_process_is_a_fault():
    with remote_engine(MODEL, **OPTIONS) as (engine, loop, _):
        loop._frames.close()
        engine.reports.wait(10)
        while not engine.has_reports:
            time.sleep(0.01)
        with pytest.raises(EngineFaultError, match="has ended"):
            engine.step()
        with pytest.raises(ApiError, match="another one starts"):
            engine.submit([5], CONFIGS[0])


def test_frames_are_sent_in_order_by_a_thread_that_ends_with_the_socket():
    """Also while the other process takes none: their bytes are far more than a socket holds."""
    ours, theirs = socket.socketpair()
    before = {*threading.enumerate()}
    link, other = EngineLink(FrameSocket(ours)), FrameSocket(theirs)
    link.listen(lambda: None)
    own = {*threading.enumerate()} - before
    for number in range(300):
        link.send("submit", number, [7] * 2000)
    found = []
    while len(found) < 300:
        found += other.receive(waits=True)
    assert [number for _, number, _ in found] == [*range(300)]
    gate, sent = threading.Event(), []
    link.frames.send = lambda *frames: (sent.extend(frames), gate.wait(10))
    link.send("first")
    while not sent:
        time.sleep(0.001)
    link.send("second")
    link.close()  # the thread finds the second frame and the end at once
    gate.set()
    other.close()
    for thread in own:
        thread.join(10)
    assert len(own) == 2
    assert not any(thread.is_alive() for thread in own)


@pytest.mark.full
def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(RuntimeError, match="nothing"):
        start_engine(tmp_path / "nothing", {"device": "cpu"}, {})


@pytest.fixture(scope="module")
def server(model_paths):
    """A server whose chat model has a separate process."""
    names = ("chat", "embedder", "translator")
    found = Served(*(f"{name}={model_paths[name]}" for name in names), "--max-queue", 1000, "--engine-process", "on")
    yield found
    code = found.stop()
    assert code == 0, "".join(found.log)


def children(server):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


@pytest.mark.full
@pytest.mark.parametrize(
    "check",
    [
        same_answers.test_concurrent_requests_are_answered_as_alone,
        same_answers.test_clients_that_disconnect_leave_no_row_behind,
    ],
)
def test_a_server_answers_as_with_a_local_engine(server, count, check):
    check(server, count)


def is_alive(process):
    """Return whether there is a process with this number that has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


LONG = {"model": "chat", "prompt": "the", "max_tokens": 400, "logit_bias": {"2": -100}, "temperature": 0}


def ask_together(server, pool, count):
    """Ask for long answers, half of them as streams, and return the futures of status and text when all of them run."""

    def ask(number):
        status, _, found = server.ask("/v1/completions", {**LONG, "stream": number % 2 == 0})
        return status, found if isinstance(found, str) else json.dumps(found)

    found = [pool.submit(ask, number) for number in range(count)]
    until = time.monotonic() + 30
    while server.metric("glassformer_running_rows") < count and time.monotonic() < until:
        time.sleep(0.01)
    return found


@pytest.mark.full
def test_another_process_starts_when_one_ends(server):
    body = {"model": "chat", "prompt": "the cat", "max_tokens": 8, "temperature": 0}
    expected = server.ask("/v1/completions", body)[2]["choices"]
    (child,) = children(server)
    with ThreadPoolExecutor(8) as pool:
        running = ask_together(server, pool, 8)
        os.kill(child, signal.SIGKILL)
        answers = [future.result(30) for future in running]
    assert {status for status, _ in answers} <= {200, 500}
    assert any('"error"' in found for _, found in answers)
    assert all('"error"' in found for status, found in answers if status == 500)
    assert server.ask("/v1/embeddings", {"model": "embedder", "input": "a"})[0] == 200, "other models are not affected"
    until = time.monotonic() + 120
    while True:
        status, _, found = server.ask("/v1/completions", body)
        if status == 200 and children(server) != [child]:
            break
        assert status in (200, 500, 503)
        assert time.monotonic() < until
        time.sleep(0.2)
    assert found["choices"] == expected


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_ends_with_its_server(model_paths, number):
    server = Served(f"chat={model_paths['chat']}", "--engine-process", "on", "--quiet")
    (child,) = children(server)
    with ThreadPoolExecutor(6) as pool:
        running = ask_together(server, pool, 6)
        server.process.send_signal(number)
        if number == signal.SIGTERM:
            answers = [future.result(30) for future in running]
            assert [status for status, _ in answers] == [200] * 6
            assert not [found for _, found in answers if '"error"' in found]
            assert server.process.wait(30) == 0
        else:
            for future in running:
                with suppress(OSError, http.client.HTTPException):
                    future.result(30)
    until = time.monotonic() + 20
    while is_alive(child):
        assert time.monotonic() < until, "the engine's process has outlived its server"
        time.sleep(0.05)
    server.stop()
