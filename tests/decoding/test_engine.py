"""The batching engine: a request's text does not depend on the other requests in the batch."""

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.decoding import Engine, EngineFullError, GenerationConfig, generate
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.models import preset
from glassformer.runtime import choose_runner
from oracle import random_model
from recording import DECODERS, PAIR, assert_same, make

END, BEGIN = 0, 1
torch.manual_seed(0)
MODELS = {name: random_model(preset(name)) for name in ("tiny-llama", "tiny-gpt2", "tiny-marian", "tiny-t5-small")}


def options(name):
    return {"end": END, **({"begin": BEGIN} if MODELS[name].kind == "encoder_decoder" else {})}


def pool_of(engine):
    return engine._reader.batch.runner.pool


CONFIGS = st.sampled_from(
    [
        GenerationConfig(max_new_tokens=6),
        GenerationConfig(max_new_tokens=11, suppress_tokens=(END,)),
        GenerationConfig(max_new_tokens=7, do_sample=True, seed=3, num_return_sequences=2),
        GenerationConfig(max_new_tokens=5, do_sample=True, seed=4, top_k=5, temperature=2.0),
        GenerationConfig(max_new_tokens=6, num_beams=3, num_return_sequences=2),
        GenerationConfig(max_new_tokens=8, repetition_penalty=1.5, min_new_tokens=3),
        GenerationConfig(max_new_tokens=9, prompt_lookup_num_tokens=3),
        GenerationConfig(max_new_tokens=4, forced_eos_token_id=9, suppress_tokens=(END,)),
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
        if engine._reader is not None:
            assert len(pool_of(engine).rows) * pool_of(engine).capacity <= engine.max_tokens
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
        engine.submit([5], GenerationConfig(max_new_tokens=100, do_sample=True, num_return_sequences=2))
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


def test_a_request_is_admitted_by_the_tokens_that_the_model_can_write():
    limit = POOLED["alibi"].config.max_len
    engine = Engine(POOLED["alibi"], end=2, max_rows=1, max_tokens=limit + 1)
    request = engine.submit([5, 6], GenerationConfig(max_new_tokens=10**6, suppress_tokens=(2,)))
    with pytest.raises(EngineFullError, match=rf"needs 2 rows and {2 * limit + 2} tokens: .* lower max_new_tokens"):
        engine.submit([5], GenerationConfig(max_new_tokens=10**6, do_sample=True, num_return_sequences=2))
    engine.run()
    assert len(request.texts[0].tokens) == limit - 1


@pytest.mark.parametrize("steps", [1, 3])  # while its prompt is being read, and while it runs
def test_a_cancelled_request_gives_its_rows_to_one_that_waits(steps):
    engine = Engine(POOLED["alibi"], end=2, max_rows=2, max_tokens=60, read_tokens=4)
    config = GenerationConfig(max_new_tokens=9, suppress_tokens=(2,))
    engine.submit([5], replace(config, max_new_tokens=20))
    engine.step()
    first, second = engine.submit([6] * 9, config), engine.submit([7], config)
    for _ in range(steps):
        engine.step()
    assert (bool(first.rows[0].written), second.rows) == (steps == 3, [])
    assert engine.n_rows == 2
    first.cancel()
    engine.step()
    assert first.is_done
    assert second.rows[0].written
    engine.run()
    assert engine.n_rows == pool_of(engine).n_busy == 0
    assert second.texts[0].tokens == generate(engine.model, [[7]], config, end=2)[0][0].tokens


def test_a_closed_engine_gives_its_pool_to_the_next():
    engine = Engine(POOLED["alibi"], end=2, max_rows=2, max_tokens=60)
    beam, config = GenerationConfig(num_beams=2, max_new_tokens=9), GenerationConfig(max_new_tokens=9)
    for asked in (config, config, beam):
        engine.submit([5], asked)
    engine.step()
    pool = pool_of(engine)
    engine.close()
    assert engine.is_idle
    assert engine.n_rows == pool.n_busy == 0
    other = Engine(POOLED["alibi"], end=2, max_rows=2, max_tokens=60)
    request = other.submit([5, 6], config)
    other.run()
    assert pool_of(other) is pool
    assert request.texts[0].tokens == generate(other.model, [[5, 6]], config, end=2)[0][0].tokens


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


POOLED = {name: make(config) for name, config in {**DECODERS, "pair": PAIR}.items()}
STEMS = [[7, 8, 9, 10, 11, 12, 13, 14], [7, 8, 9, 10, 3, 4], [15, 16, 17]]
PROMPTS = st.tuples(st.sampled_from(STEMS), st.integers(1, 8), st.lists(st.integers(3, 22), max_size=3))


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(sorted(POOLED)),
    prompts=st.lists(st.tuples(st.integers(0, 3), PROMPTS, CONFIGS), min_size=2, max_size=8),
    is_recorded=st.booleans(),
    read_tokens=st.sampled_from([1, 4, 64]),
    min_reuse=st.integers(0, 4),
    max_tokens=st.sampled_from([80, 200]),
)
def test_pooled_rows_parts_of_prompts_and_reuse_change_no_text(
    name, prompts, is_recorded, read_tokens, min_reuse, max_tokens
):
    model, ends = POOLED[name], {"end": 2, "begin": 1 if name == "pair" else None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_runner, "should_record_pool", lambda model: is_recorded)
        engine = Engine(model, max_rows=4, max_tokens=max_tokens, read_tokens=read_tokens, min_reuse=min_reuse, **ends)
        requests, size = [], None
        for pause, (stem, length, rest), config in prompts:
            for _ in range(pause):
                engine.step()
            requests.append(engine.submit([*stem[:length], *rest], config))
        for _ in range(400):
            if engine.is_idle:
                break
            engine.step()
            if engine._reader is not None:
                assert size in (None, pool_of(engine).nbytes)
                size = pool_of(engine).nbytes
        assert engine.is_idle
    for request in requests:
        assert request.error is None
        assert_same([generate(model, [request.tokens], request.config, **ends)[0]], [request.texts])


REPLAYED = {
    name: make(replace(POOLED[name].config, d_model=32, n_heads=2)).float()
    for name in ("learned positions", "rotary, grouped", "window", "pair")
}


@settings(max_examples=6, deadline=None)
@given(
    name=st.sampled_from(sorted(REPLAYED)),
    prompts=st.lists(st.tuples(st.integers(0, 3), PROMPTS, CONFIGS), min_size=2, max_size=8),
    read_tokens=st.sampled_from([2, 64]),
    max_tokens=st.sampled_from([80, 200]),
)
def test_steps_replayed_from_cpp_change_no_text(name, prompts, read_tokens, max_tokens):
    try:
        cpp_kernels()
    except KernelBuildError as error:
        pytest.skip(f"no C++ kernels: {error}")
    plain, ends = REPLAYED[name], {"end": 2, "begin": 1 if name == "pair" else None}
    model = make(plain.config).float()
    choose_runner.use_compiled_kernels(model)
    engine = Engine(model, max_rows=4, max_tokens=max_tokens, read_tokens=read_tokens, min_reuse=3, **ends)
    requests = []
    for pause, (stem, length, rest), config in prompts:
        for _ in range(pause):
            engine.step()
        requests.append(engine.submit([*stem[:length], *rest], config, with_log_probs=True))
    engine.run()
    runner = engine._reader.batch.runner if engine._reader else None
    assert runner is None or (runner.is_recorded and runner.replays_from_cpp)
    for request in requests:
        assert request.error is None
        alone = generate(plain, [request.tokens], request.config, with_log_probs=True, **ends)
        assert_same(alone, [request.texts], tolerance=1e-3)


def test_the_next_turn_of_a_conversation_reads_only_its_new_tokens():
    model = POOLED["rotary, grouped"]
    config = GenerationConfig(max_new_tokens=6, suppress_tokens=(2,))
    engine = Engine(model, end=2, min_reuse=2)
    first = engine.submit([5, 6, 7, 8], config)
    engine.run()
    turn = [5, 6, 7, 8, *first.texts[0].tokens, 9, 10]
    second, other = engine.submit(turn, config), engine.submit([20, 6, 7, 8], config)
    engine.run()
    # The keys and values of the last token that was generated were never computed.
    assert (first.n_reused, second.n_reused, other.n_reused) == (0, len(turn) - 3, 0)
    assert second.texts[0].tokens == generate(model, [turn], config, end=2)[0][0].tokens


def test_running_requests_go_on_while_a_long_prompt_is_read_in_parts():
    engine = Engine(POOLED["alibi"], end=2, read_tokens=4)
    config = GenerationConfig(max_new_tokens=20, suppress_tokens=(2,))
    first = engine.submit([5], config)
    engine.step()
    second = engine.submit([6] * 14, config)
    for _ in range(3):
        before = len(first.rows[0].written)
        engine.step()
        assert len(first.rows[0].written) == before + 1
        assert second.rows[0].written == []
    engine.step()
    assert second.rows[0].written
    engine.run()
    assert second.texts[0].tokens == generate(engine.model, [second.tokens], config, end=2)[0][0].tokens


def test_waiting_prompts_of_similar_length_are_read_together():
    engine = Engine(POOLED["alibi"], end=2)
    passes = []
    handle = engine.model.decoder.register_forward_hook(lambda stack, given, found: passes.append(found.shape[:2]))
    for length in (3, 4, 9, 4):
        engine.submit([5] * length, GenerationConfig(max_new_tokens=2, suppress_tokens=(2,)))
    engine.run()
    handle.remove()
    assert passes == [(3, 4), (1, 9), (4, 1)]


def test_a_running_request_is_not_copied_when_another_joins():
    engine = Engine(POOLED["alibi"], end=2, max_rows=4)
    config = GenerationConfig(max_new_tokens=12, suppress_tokens=(2,))
    engine.submit([5, 6, 7], config)
    engine.step()
    block = pool_of(engine).keys[0]
    first = block[0].clone()
    engine.submit([8, 9], config)
    engine.step()
    assert pool_of(engine).keys[0] is block
    assert torch.equal(block[0, :, :4], first[:, :4])
    assert engine._reader.batch.members[0].place.index == 0


def test_a_request_longer_than_a_row_makes_rows_longer_while_it_runs():
    engine = Engine(POOLED["alibi"], end=2, max_rows=4, max_tokens=60)
    small, large = (GenerationConfig(max_new_tokens=count, suppress_tokens=(2,)) for count in (10, 20))
    requests = [engine.submit([5, 6], small) for _ in range(2)]
    engine.step()
    requests += [engine.submit([7, 8], large), engine.submit([9], small)]
    engine.step()
    assert engine.n_rows == 2  # rows of 22 tokens: two of them
    engine.run()
    assert pool_of(engine).capacity == 30
    for request in requests:
        alone = generate(engine.model, [request.tokens], request.config, end=2)[0]
        assert request.texts[0].tokens == alone[0].tokens


def test_a_prompt_with_an_unknown_token_is_refused():
    engine = Engine(POOLED["alibi"], end=2)
    with pytest.raises(ValueError, match="input 0 holds the id 23: expected ids from 0 to 22"):
        engine.submit([5, 23])
    with pytest.raises(TypeError):
        engine.submit([5.5])


def test_numbers_that_are_not_finite_stay_in_their_request():
    model = make(DECODERS["learned positions"])
    with torch.no_grad():
        model.embeddings.tokens.weight[21] = torch.nan
    engine = Engine(model, end=2, max_rows=2)
    config = GenerationConfig(max_new_tokens=4, suppress_tokens=(2, 21))
    other = engine.submit([5] * 9, GenerationConfig(max_new_tokens=12, suppress_tokens=(2, 21)))
    # The second runs in the row of the first, beside a longer text, so that its steps read what the first has left.
    bad, good = engine.submit([21, 5, 6, 7, 8], config), engine.submit([5, 6], config)
    engine.run()
    assert isinstance(bad.error, FloatingPointError)
    for request in (other, good):
        assert request.texts[0].tokens == generate(model, [request.tokens], request.config, end=2)[0][0].tokens


def test_memory_does_not_grow_with_the_number_of_requests():
    engine = Engine(POOLED["alibi"], end=2, max_rows=3, max_tokens=90, min_reuse=1)
    config = GenerationConfig(max_new_tokens=8, suppress_tokens=(2,))
    blocks = None
    for number in range(12):
        for length in (1, 9, 20):
            engine.submit([3 + number] * length, config)
        engine.run()
        storage = [block.untyped_storage() for block in pool_of(engine).keys]
        blocks = blocks or storage
        assert [block.data_ptr() for block in storage] == [block.data_ptr() for block in blocks]
        assert sum(row.length for row in pool_of(engine).rows) <= engine.max_tokens
    width = engine.model.config.kv_heads * engine.model.config.head_size
    n_numbers = 2 * engine.model.config.n_decoder_layers * engine.max_tokens * width
    assert pool_of(engine).nbytes == sum(block.nbytes() for block in blocks) == n_numbers * 8
    assert engine.n_rows == 0


class EvenTokens:
    """Allows tokens with even ids, and is complete after three of them."""

    def __init__(self):
        self.n_added = 0

    @property
    def is_complete(self):
        return self.n_added == 3

    def forbid(self, scores):
        scores[1::2] = float("-inf")

    def add(self, token):
        self.n_added += 1


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_constraint_limits_the_tokens_of_its_own_request(do_sample):
    engine = Engine(POOLED["alibi"], end=2)
    config = GenerationConfig(max_new_tokens=6, suppress_tokens=(2,), do_sample=do_sample)
    free = engine.submit([5, 6, 7], config)
    even = engine.submit([5, 6, 7], replace(config, num_return_sequences=1 + do_sample), make_constraint=EvenTokens)
    engine.run()
    assert free.texts[0].tokens == generate(POOLED["alibi"], [[5, 6, 7]], config, end=2)[0][0].tokens
    assert len(even.texts) == 1 + do_sample
    for text in even.texts:
        assert [token % 2 for token in text.tokens] == [0, 0, 0]
        assert text.reason == "end"


def test_the_likeliest_tokens_of_each_step_are_noted():
    model = POOLED["alibi"]
    engine = Engine(model, end=2)
    config = GenerationConfig(max_new_tokens=4, suppress_tokens=(2,))
    plain = engine.submit([5, 6, 7], config)
    noted = engine.submit([5, 6, 7], config, with_log_probs=True, n_top_log_probs=3)
    other = engine.submit([8, 9], config, with_log_probs=True, n_top_log_probs=1)
    engine.run()
    (row,) = noted.rows
    assert not plain.rows[0].top_log_probs
    assert [len(step) for step in other.rows[0].top_log_probs] == [1] * 4
    text = torch.tensor([[5, 6, 7, *row.written]])
    with torch.inference_mode():
        logs = model(text)[0, 2:-1].log_softmax(-1)
    for step, expected in zip(row.top_log_probs, logs, strict=True):
        best = expected.topk(3)
        assert [token for token, _ in step] == best.indices.tolist()
        torch.testing.assert_close(
            torch.tensor([value for _, value in step]), best.values.float(), rtol=1e-4, atol=1e-5
        )
