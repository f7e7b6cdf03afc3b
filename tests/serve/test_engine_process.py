import threading
import time

from glassformer.decoding import GenerationConfig
from glassformer.models import preset
from glassformer.serve.engine_process import load_engine
from glassformer.serve.openai_schemas import ResponseFormat
from oracle import random_model
from serve.engine_pairs import remote_engine, wait_for

MODEL = random_model(preset("tiny-llama"))
OPTIONS = {"end": 0, "max_rows": 4, "max_tokens": 240}


class OnlySeven:
    """A constraint that allows one token only, up to three of them."""

    def __init__(self):
        self.count = 0

    @property
    def is_complete(self):
        return self.count == 3

    def forbid(self, scores):
        keep = scores[7].clone()
        scores.fill_(-float("inf"))
        scores[7] = keep

    def add(self, token):
        self.count += 1


class Maker:
    """What `constraint_maker` returns."""

    format = ResponseFormat(type="regex", pattern="g*")

    def __call__(self):
        return OnlySeven()


def test_a_grammar_is_read_beside_the_steps():
    gate, formats = threading.Event(), []

    def make(format):
        formats.append(format)
        gate.wait(10)
        return OnlySeven

    with remote_engine(MODEL, make, **OPTIONS) as (engine, _, _steps):
        held = engine.submit([5], GenerationConfig(max_new_tokens=9), make_constraint=Maker())
        free = engine.submit([5], GenerationConfig(max_new_tokens=9))
        wait_for(engine, [free])
        assert not held.is_done
        gate.set()
        wait_for(engine, [held])
    assert held.texts[0].tokens == [7, 7, 7]
    assert formats == [{"type": "regex", "json_schema": None, "pattern": "g*"}]
    assert ResponseFormat.model_validate(formats[0]) == Maker.format


def test_requests_with_grammars_join_in_the_thread_that_steps():
    """If another thread queued one while the loop is about to wait for frames, it would run only after the next one."""
    threads = set()

    def make(format):
        if format["pattern"] == "(":
            raise ValueError("no grammar")
        return OnlySeven

    with remote_engine(MODEL, make, **OPTIONS) as (engine, loop, _):
        enqueue = loop.engine.enqueue
        loop.engine.enqueue = lambda requests: (threads.add(threading.current_thread().name), enqueue(requests))
        for pattern in "g(" * 10:
            maker = Maker()
            maker.format = ResponseFormat(type="regex", pattern=pattern)
            request = engine.submit([5], GenerationConfig(max_new_tokens=9), make_constraint=maker)
            wait_for(engine, [request])
            assert (request.error is None) == (pattern == "g")
        canceled = engine.submit([5], GenerationConfig(max_new_tokens=9), make_constraint=Maker())
        canceled.cancel()
        after = engine.submit([5], GenerationConfig(max_new_tokens=9))
        wait_for(engine, [canceled, after])
        while loop._constrained or loop._requests:
            time.sleep(0.001)
    assert len(threads) == 1
    assert not [name for name in threads if name.startswith("grammars")]


def test_a_model_is_loaded_with_its_constraints(model_paths):
    sizes = {"max_rows": 2, "max_tokens": 64, "max_waiting": 3}
    load = {"device": "cpu", "dtype": "auto", "quantize": "none", "compile": "auto", "batch_tokens": None, "threads": 1}
    make_engine, make_constraint = load_engine(model_paths["chat"], load, sizes)
    engine = make_engine()
    maker = make_constraint({"type": "regex", "json_schema": None, "pattern": "a+"})
    request = engine.submit([5], GenerationConfig(max_new_tokens=5), make_constraint=maker)
    engine.run()
    assert set(request.texts[0].text) == {"a"}
    assert (engine.max_rows, engine.max_tokens, engine.max_waiting) == (2, 64, 3)
