"""The batching engine: a request's text does not depend on the other requests in the batch."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.decoding import Engine, EngineFullError, GenerationConfig, generate
from glassformer.models import preset
from oracle import random_model
from recording import assert_same

END, BEGIN = 0, 1
torch.manual_seed(0)
MODELS = {name: random_model(preset(name)) for name in ("tiny-llama", "tiny-gpt2", "tiny-marian", "tiny-t5-small")}


def options(name):
    return {"end": END, **({"begin": BEGIN} if MODELS[name].kind == "encoder_decoder" else {})}


CONFIGS = st.sampled_from(
    [
        GenerationConfig(max_new_tokens=6),
        GenerationConfig(max_new_tokens=11, suppress_tokens=(END,)),
        GenerationConfig(max_new_tokens=7, do_sample=True, seed=3, num_return_sequences=2),
        GenerationConfig(max_new_tokens=5, do_sample=True, seed=4, top_k=5, temperature=2.0),
        GenerationConfig(max_new_tokens=6, num_beams=3, num_return_sequences=2),
        GenerationConfig(max_new_tokens=8, repetition_penalty=1.5, min_new_tokens=3),
    ]
)
ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 5),  # steps before it arrives
        st.lists(st.integers(2, 39), min_size=1, max_size=7),
        CONFIGS,
        st.none() | st.integers(0, 6),  # steps after which it is cancelled
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(MODELS)), arrivals=ARRIVALS, max_rows=st.integers(3, 8))
def test_a_request_in_the_engine_gives_the_text_it_gives_alone(name, arrivals, max_rows):
    engine = Engine(MODELS[name], max_rows=max_rows, max_tokens=80, **options(name))
    submitted, cancels = [], {}
    streamed: dict[int, list[int]] = {}
    now = 0
    for number, (pause, tokens, config, cancel_after) in enumerate(arrivals):
        for _ in range(pause):
            engine.step()
            now += 1
            for request in cancels.pop(now, []):
                request.cancel()
        streamed[number] = []

        def note(sample, token, heard=streamed[number]):
            if sample == 0:
                heard.append(token)

        request = engine.submit(tokens, config, note)
        submitted.append((number, request, cancel_after))
        if cancel_after is not None:
            cancels.setdefault(now + cancel_after, []).append(request)
    for _ in range(300):
        for request in cancels.pop(now, []):
            request.cancel()
        if engine.is_idle:
            break
        engine.step()
        now += 1
        if engine._runner is not None:
            assert engine._runner.cache.batch_size * engine._runner.cache.capacity <= engine.max_tokens
    assert engine.is_idle
    for number, request, _ in submitted:
        assert request.is_done
        assert request.error is None
        (alone,) = generate(MODELS[name], [request.tokens], request.config, **options(name))
        if not request.is_canceled:
            assert_same([alone], [request.texts])
        elif request.texts:
            for text, whole in zip(request.texts, alone, strict=True):
                assert whole.tokens[: len(text.tokens)] == text.tokens
        if request.config.num_beams == 1 and request.texts:
            assert streamed[number] == request.texts[0].tokens


def test_a_cancelled_request_gets_no_further_token():
    engine = Engine(MODELS["tiny-llama"], **options("tiny-llama"))
    config = GenerationConfig(max_new_tokens=20, suppress_tokens=(END,))
    first, second = engine.submit([5], config), engine.submit([6], config)
    for _ in range(3):
        engine.step()
    written = len(first.rows[0].written)
    first.cancel()
    engine.step()
    assert first.is_done
    assert len(first.texts[0].tokens) == written
    engine.run()
    assert len(second.texts[0].tokens) == 20


def test_cancelling_a_waiting_request_frees_its_place_at_once():
    engine = Engine(MODELS["tiny-llama"], max_rows=1, max_waiting=2, **options("tiny-llama"))
    config = GenerationConfig(max_new_tokens=3, suppress_tokens=(END,))
    for _ in range(5):  # without a step between them
        requests = [engine.submit([5], config) for _ in range(2)]
        for request in requests:
            request.cancel()
            assert request.is_done
            assert request.texts == []
    assert engine.is_idle
    first, second = engine.submit([5], config), engine.submit([6], config)
    first.cancel()
    first.cancel()
    engine.run()
    assert len(second.texts[0].tokens) == 3


def test_requests_beyond_the_limits_are_refused_by_name():
    engine = Engine(MODELS["tiny-llama"], max_rows=2, max_tokens=60, max_waiting=2, **options("tiny-llama"))
    with pytest.raises(EngineFullError, match=r"needs 3 rows and 15 tokens: expected at most max_rows=2"):
        engine.submit([5], GenerationConfig(max_new_tokens=4, num_beams=3))
    with pytest.raises(EngineFullError, match="max_tokens=60"):
        engine.submit([5], GenerationConfig(max_new_tokens=100))
    config = GenerationConfig(max_new_tokens=20, suppress_tokens=(END,))
    requests = [engine.submit([5], config) for _ in range(2)]
    with pytest.raises(EngineFullError, match="2 requests are waiting: expected fewer than max_waiting=2"):
        engine.submit([5], config)
    engine.step()
    requests += [engine.submit([6], config) for _ in range(2)]
    most = 0
    while not engine.is_idle:
        engine.step()
        most = max(most, engine.n_rows)
    assert most == 2
    assert [len(request.texts[0].tokens) for request in requests] == [20] * 4


def test_a_failing_request_does_not_affect_the_others():
    engine = Engine(MODELS["tiny-llama"], **options("tiny-llama"))
    everything = tuple(range(MODELS["tiny-llama"].config.vocab_size))
    good = engine.submit([5], GenerationConfig(max_new_tokens=5))
    bad = engine.submit([5], GenerationConfig(suppress_tokens=everything))
    engine.run()
    assert isinstance(bad.error, ValueError)
    assert good.error is None
    assert good.texts[0].tokens == generate(MODELS["tiny-llama"], [[5]], good.config, end=END)[0][0].tokens
    with pytest.raises(ValueError, match="input 0 is empty"):
        engine.submit([])


def test_wrong_ids_are_refused_when_a_request_is_submitted():
    engine = Engine(MODELS["tiny-llama"], **options("tiny-llama"))
    with pytest.raises(ValueError, match="input 0 holds the id 1000000: expected ids from 0 to 39"):
        engine.submit([5, 10**6])
    with pytest.raises(ValueError, match="prefix names token 40: expected 0 to 39"):
        engine.submit([5], GenerationConfig(prefix=(40,)))
    assert engine.is_idle


def test_an_error_in_a_callback_ends_only_its_own_request():
    engine = Engine(MODELS["tiny-llama"], **options("tiny-llama"))
    config, heard = GenerationConfig(max_new_tokens=6, suppress_tokens=(END,)), []

    def fail_at_the_third(sample, token):
        heard.append(token)
        if len(heard) == 3:
            raise OSError("connection lost")

    bad, good = engine.submit([5], config, fail_at_the_third), engine.submit([5], config)
    engine.run()
    assert isinstance(bad.error, OSError)
    assert len(heard) == 3
    assert good.error is None
    assert len(good.texts[0].tokens) == 6


def test_many_threads_can_submit_requests_at_once():
    engine = Engine(MODELS["tiny-gpt2"], max_rows=4, **options("tiny-gpt2"))
    config, requests = GenerationConfig(max_new_tokens=5), []

    def ask(number):
        requests.append(engine.submit([number + 2], config))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.run()
    for request in requests:
        alone = generate(MODELS["tiny-gpt2"], [request.tokens], config, end=END)[0][0]
        assert request.texts[0].tokens == alone.tokens
