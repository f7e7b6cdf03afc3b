"""The running batch: early launches and verified proposals choose the tokens of single steps."""

from dataclasses import replace

import pytest
import torch

from glassformer.decoding.engine import Engine
from glassformer.decoding.generate import generate
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.runtime import choose_runner
from recording import DECODERS, END, make

MODEL = make(DECODERS["window"])


def passes_of(engine):
    """Count the forward passes of an engine's model from now on; call the result's `remove` at the end."""
    shapes = []
    handle = engine.model.decoder.register_forward_hook(lambda stack, given, found: shapes.append(found.shape[:2]))
    return shapes, handle


def test_right_proposals_save_passes_and_change_nothing():
    # A model that repeats: its next token depends on the last three tokens only, so greedy texts become periodic.
    config = GenerationConfig(max_new_tokens=24, suppress_tokens=(END,))
    fast = GenerationConfig(max_new_tokens=24, suppress_tokens=(END,), prompt_lookup_num_tokens=4)
    plain = generate(MODEL, [[5, 6, 7]], config, end=END, with_log_probs=True)[0][0]
    engine = Engine(MODEL, end=END)
    shapes, handle = passes_of(engine)
    request = engine.submit([5, 6, 7], fast, with_log_probs=True)
    engine.run()
    handle.remove()
    assert request.texts[0].tokens == plain.tokens
    assert request.texts[0].log_probs == pytest.approx(plain.log_probs)
    assert len(shapes) < 20


def test_rows_with_and_without_proposals_run_together():
    configs = [
        GenerationConfig(max_new_tokens=15, suppress_tokens=(END,), prompt_lookup_num_tokens=count, do_sample=sample)
        for count, sample in ((3, False), (0, False), (2, True))
    ]
    prompts = [[5, 6, 7, 5, 6], [8, 9], [10, 10, 11, 10, 10]]
    engine = Engine(MODEL, end=END, min_reuse=1)
    for _ in range(2):  # the second time the prompts continue rows that the first has left
        requests = [engine.submit(prompt, config) for prompt, config in zip(prompts, configs, strict=True)]
        engine.run()
        for request in requests:
            alone = generate(MODEL, [request.tokens], request.config, end=END)[0][0]
            assert request.texts[0].tokens == alone.tokens
    assert all(request.n_reused for request in requests)


@pytest.mark.parametrize("is_recorded", [False, True])
def test_recorded_steps_take_proposals_only_for_a_single_sequence(is_recorded, monkeypatch):
    monkeypatch.setattr(choose_runner, "should_record_pool", lambda model: is_recorded)
    engine = Engine(MODEL, end=END)
    config = GenerationConfig(max_new_tokens=24, suppress_tokens=(END,), prompt_lookup_num_tokens=4)
    requests = [engine.submit([5, 6, 7], replace(config, max_new_tokens=count)) for count in (12, 24)]
    engine.step()
    verified, verify = [], engine._reader.batch.runner.verify
    engine._reader.batch.runner.verify = lambda rows, texts: (verified.append(len(rows)), verify(rows, texts))[1]
    engine.run()
    assert set(verified) == ({1} if is_recorded else {1, 2})
    for request in requests:
        assert request.texts[0].tokens == generate(MODEL, [request.tokens], request.config, end=END)[0][0].tokens


def test_the_next_step_is_launched_before_the_tokens_are_read(monkeypatch):
    monkeypatch.setattr(choose_runner, "should_record_pool", lambda model: True)
    engine = Engine(MODEL, end=END)
    config = GenerationConfig(max_new_tokens=6, suppress_tokens=(END,))
    first = engine.submit([5, 6], config)
    engine.step()
    place = engine._reader.batch.members[0].place
    # Two tokens are chosen. A third step has been launched, so the second token is stored already.
    assert (len(first.rows[0].written), place.length) == (2, 4)
    second = engine.submit([7], config)
    engine.run()
    for request in (first, second):
        assert request.texts[0].tokens == generate(MODEL, [request.tokens], config, end=END)[0][0].tokens
    assert torch.isfinite(engine._reader.batch.runner.pool.keys[0]).all()


def test_recorded_steps_choose_the_tokens_of_greedy_requests(monkeypatch):
    monkeypatch.setattr(choose_runner, "should_record_pool", lambda model: True)
    engine = Engine(MODEL, end=END, max_rows=4)
    config = GenerationConfig(max_new_tokens=9, min_new_tokens=2)
    lengths = {3: replace(config, max_new_tokens=4), 5: config, 1: replace(config, max_new_tokens=13)}
    requests = [engine.submit([7] * count, own) for count, own in lengths.items()]
    engine.step()
    taken, runner = [], engine._reader.batch.runner
    greedy_step, step = runner.greedy_step, runner.step
    runner.greedy_step = lambda tokens, bias: (taken.append("greedy"), greedy_step(tokens, bias))[1]
    runner.step = lambda tokens: (taken.append("plain"), step(tokens))[1]
    engine.step()
    requests.append(engine.submit([5, 6], config))  # joins while the others are past `min_new_tokens`, and it is not
    requests.append(engine.submit([9], replace(config, do_sample=True, seed=4)))
    engine.run()
    for request in requests:
        alone = generate(MODEL, [request.tokens], request.config, end=END)[0][0]
        assert (request.texts[0].tokens, request.texts[0].reason) == (alone.tokens, alone.reason)
    assert {*taken} == {"greedy", "plain"}
