from glassformer.decoding import Engine, GenerationConfig
from glassformer.models import preset
from glassformer.serve.warm_up import batch_sizes, warm_up
from oracle import random_model

MODEL = random_model(preset("tiny-llama"))


def test_every_recorded_size_is_used():
    assert batch_sizes(128) == [128, 64, 32, 8, 1]
    assert batch_sizes(200) == [200, 192, 128, 64, 32, 8, 1]
    assert batch_sizes(1) == [1]


def test_an_engine_is_as_new_after_it():
    said, config = [], GenerationConfig(max_new_tokens=5)
    fresh = Engine(MODEL, end=0, max_rows=10, max_tokens=600, min_reuse=1)
    expected = fresh.submit([5, 6], config)
    fresh.run()
    engine = Engine(MODEL, end=0, max_rows=10, max_tokens=600, min_reuse=1)
    warm_up(engine, said.append, is_forced=True)
    assert [line.split(",")[0] for line in said] == [
        f"warming up: batch size {size} ({number} of 3)" for number, size in enumerate((10, 8, 1), 1)
    ]
    assert engine.is_idle
    found = engine.submit([0, 0, 0], config)
    engine.run()
    assert found.n_reused == 0
    found = engine.submit([5, 6], config)
    engine.run()
    assert found.texts == expected.texts


def test_a_small_cache_or_a_cpu_is_no_problem():
    said = []
    warm_up(Engine(MODEL, end=0, max_rows=4, max_tokens=24, min_reuse=1), said.append, is_forced=True)
    assert len(said) == 2
    warm_up(Engine(MODEL, end=0), said.append)
    assert len(said) == 2


def test_prompts_of_every_recorded_size_are_read(monkeypatch):
    monkeypatch.setattr(Engine, "reading_sizes", [(1, 8), (4, 8), (4, 16), (16, 8)])
    engine, said, seen = Engine(MODEL, end=0, max_rows=8, max_tokens=160, min_reuse=0), [], []
    enqueue = engine.enqueue
    monkeypatch.setattr(engine, "enqueue", lambda some: (seen.append([len(one.tokens) for one in some]), enqueue(some)))
    warm_up(engine, said.append, is_forced=True)
    assert said[-1].startswith("warming up: prompts of 3 sizes")  # 16 rows are more than the engine has
    assert [sizes for sizes in seen if {*sizes} <= {4, 12}] == [[4], [4] * 4, [12] * 4]
