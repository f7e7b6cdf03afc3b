"""The engine of a server whose model is divided among processes: all of them make the same steps."""

import os
import pickle
import random
import signal
import time
from contextlib import contextmanager

import pytest

from glassformer.decoding import Engine, EngineFullError, GenerationConfig
from glassformer.models import preset
from glassformer.serve import shared_engine
from glassformer.serve.api_errors import ApiError
from glassformer.serve.shared_engine import LeadingEngine, MirroredEngine, ServerProcesses
from oracle import random_model
from serve.served import Served, write_models
from serve.test_same_answers import ask, random_request
from training.launched import torchrun

MODEL = random_model(preset("tiny-llama"))
CONFIGS = [
    GenerationConfig(max_new_tokens=6),
    GenerationConfig(max_new_tokens=7, do_sample=True, seed=3, num_return_sequences=2),
    GenerationConfig(max_new_tokens=6, num_beams=3),
]


def pair(**options):
    """Return the leading engine, the engine that follows, and the changes that were sent."""
    options = {"end": 0, "max_rows": 6, "max_tokens": 120, **options}
    follower, sent = MirroredEngine(Engine(MODEL, **options)), []

    def send(changes):
        sent.append(pickle.loads(pickle.dumps(changes)))

    return LeadingEngine(MODEL, send=send, on_fault=pytest.fail, **options), follower, sent


def test_all_engines_write_the_same_texts():
    chance = random.Random(0)
    leader, follower, sent = pair()
    plain = Engine(MODEL, end=0, max_rows=6, max_tokens=120)
    asked, expected, streamed = [], [], {}
    for number in range(9):
        tokens = [chance.randrange(2, 40) for _ in range(chance.randrange(1, 7))]
        config = CONFIGS[number % 3]
        expected.append(plain.submit(tokens, config))
        written = streamed.setdefault(number, [])
        asked.append(leader.submit(tokens, config, lambda sample, token, w=written: w.append(token)))
        for _ in range(chance.randrange(3)):
            leader.step()
    plain.run()
    leader.run()
    assert [[text.tokens for text in one.texts] for one in asked] == [
        [text.tokens for text in one.texts] for one in expected
    ]
    assert streamed[0] == asked[0].texts[0].tokens
    assert leader.is_idle
    assert leader.n_rows == 0
    found = {}
    for changes in sent:
        follower.step(changes)
        found |= follower.requests
    assert [[text.tokens for text in found[n + 1].texts] for n in range(9)] == [
        [text.tokens for text in one.texts] for one in asked
    ]
    assert follower.engine.is_idle


def test_a_request_is_canceled_in_all_processes_before_the_same_step():
    leader, follower, sent = pair()
    long = GenerationConfig(max_new_tokens=30, min_new_tokens=30)
    first, second = leader.submit([5, 6], long), leader.submit([7], long)
    waiting = leader.submit([8], long)
    waiting.cancel()
    assert waiting.is_done, "it was in the queue"
    for _ in range(3):
        leader.step()
    first.cancel()
    assert not first.is_done
    leader.step()
    assert first.is_done
    assert 0 < len(first.texts[0].tokens) < 30
    leader.run()
    assert len(second.texts[0].tokens) == 30
    assert [changes.canceled for changes in sent if changes.canceled] == [[1]]
    for changes in sent:
        follower.step(changes)
    assert follower.engine.is_idle


def test_a_request_that_leaves_while_it_waits_for_room_is_forgotten():
    leader, _, _ = pair(max_rows=1)
    long = GenerationConfig(max_new_tokens=9, min_new_tokens=9)
    first, second = leader.submit([5], long), leader.submit([6], long)
    leader.step()
    second.cancel()
    leader.run()
    assert (len(first.texts[0].tokens), second.is_done, second.texts) == (9, True, [])


def test_limits_hold_and_grammars_are_refused():
    leader, _, _ = pair(max_waiting=2)
    with pytest.raises(ApiError, match="response_format needs one process: the server was started with --parallel"):
        leader.submit([5], CONFIGS[0], make_constraint=lambda: None)
    for _ in range(2):
        leader.submit([5], CONFIGS[0])
    with pytest.raises(EngineFullError, match="2 requests are waiting"):
        leader.submit([5], CONFIGS[0])


def test_a_step_that_fails_ends_the_server():
    faults = []

    def send(changes):
        raise RuntimeError("Connection closed by peer")

    leader = LeadingEngine(MODEL, send=send, on_fault=faults.append, end=0)
    leader.submit([5], CONFIGS[0])
    with pytest.raises(RuntimeError):
        leader.step()
    assert faults == ["a step failed: Connection closed by peer"]
    leader.close()


def test_a_server_ends_once_with_a_sentence(monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(shared_engine.os, "_exit", ended.append)
    together = object.__new__(ServerProcesses)
    together._lock, together._is_stopping = shared_engine.threading.Lock(), False
    together.end("process 1 of 2 has ended")
    together.end("a step failed")
    assert ended == [1]
    sentence = "glassformer: process 1 of 2 has ended. The server ends, because each process has a part of the model\n"
    assert capsys.readouterr().err == sentence


@contextmanager
def running(server):
    try:
        yield server
    finally:
        server.stop()


class ServedTogether(Served):
    """A server of two processes."""

    launcher = (*torchrun(2), "-m", "glassformer")

    def others(self):
        """The processes that torchrun started, but the first."""
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children, encoding="ascii") as stream:
            found = stream.read().split()
        ranks = {}
        for number in found:
            with open(f"/proc/{number}/environ", encoding="utf-8") as stream:
                ranks[int(number)] = "RANK=0" in stream.read().split("\0")
        return [number for number, is_first in ranks.items() if not is_first]


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds processes in /proc")
def test_two_processes_answer_as_one(tmp_path):
    paths = write_models(tmp_path)
    chance = random.Random(5)
    requests = [
        request for request in (random_request(chance) for _ in range(40)) if "response_format" not in request[0]
    ]
    with running(Served(paths["chat"])) as server:
        expected = [ask(server, *request) for request in requests]
    with running(ServedTogether(paths["chat"], "--parallel", "tensor=2")) as server:
        assert server.ask("/ready")[0] == 200
        found = [ask(server, *request) for request in requests]
        assert [{n: text for n, (text, _) in one.items()} for one in found] == [
            {n: text for n, (text, _) in one.items()} for one in expected
        ]
        body = {"model": "chat", "prompt": "it", "response_format": {"type": "regex", "pattern": "[a-c]{2,9}"}}
        status, _, told = server.ask("/v1/completions", body)
        assert status == 400
        assert "--parallel" in told["error"]["message"]
        others = server.others()
        server.stop(60)
        assert not any(os.path.exists(f"/proc/{number}") for number in others)
        assert not [line for line in server.log if line.startswith("glassformer:")], server.log


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds processes in /proc")
def test_a_process_that_is_killed_ends_the_server(tmp_path):
    paths = write_models(tmp_path)
    with running(ServedTogether(paths["chat"], "--parallel", "tensor=2")) as server:
        (other,) = server.others()
        os.kill(other, signal.SIGKILL)
        assert server.process.wait(60) != 0
        time.sleep(0.5)
        sentences = [line for line in server.log if line.startswith("glassformer:")]
        assert len(sentences) == 1
        assert "process 1 of 2 has ended. The server ends" in sentences[0]
