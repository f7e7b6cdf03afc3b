"""Recorded beam search finds the same texts as plain beam search. On a CPU a recorded step is a plain call."""

import gc
import weakref
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.decoding import GenerationConfig, generate, record_steps
from glassformer.decoding.beam import BeamSearch
from glassformer.decoding.recorded_beam import RecordedSearch
from glassformer.runtime.recorded_steps import RecordedStepRunner, Recordings
from recording import BEGIN, DECODERS, END, PAIR, assert_same, make, recordings_of

INPUTS = [[5, 6, 7], [8, 9], [11, 12, 13, 14]]
BEAMS = {
    "short": GenerationConfig(max_new_tokens=6, num_beams=2),
    "one token": GenerationConfig(max_new_tokens=1, num_beams=3, num_return_sequences=3),
    "up to max_len": GenerationConfig(max_new_tokens=200, num_beams=4, num_return_sequences=2),
    "short texts win": GenerationConfig(max_new_tokens=30, num_beams=2, length_penalty=-1.0),
    "long texts win": GenerationConfig(max_new_tokens=30, num_beams=2, length_penalty=3.0),
    "minimum length": GenerationConfig(max_new_tokens=30, num_beams=3, min_new_tokens=7),
    "bias": GenerationConfig(
        max_new_tokens=12, num_beams=2, logit_bias={4: 2.0, 9: -3.0}, suppress_tokens=(7,), min_new_tokens=1
    ),
    "early stopping": GenerationConfig(max_new_tokens=30, num_beams=2, early_stopping=True),
    "current length": GenerationConfig(max_new_tokens=30, num_beams=2, early_stopping=False, length_penalty=0.5),
    "forced end": GenerationConfig(max_new_tokens=5, num_beams=3, num_return_sequences=3, forced_eos_token_id=END),
    "another forced token": GenerationConfig(max_new_tokens=4, num_beams=2, forced_eos_token_id=9, min_new_tokens=2),
}
UNRECORDED = {
    "groups": GenerationConfig(max_new_tokens=6, num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
    "rules that read tokens": GenerationConfig(max_new_tokens=6, num_beams=2, repetition_penalty=1.5),
}


@pytest.fixture
def launched_steps(monkeypatch):
    """Launch several search steps before reading results, as on a GPU; return the list of launched step counts."""
    steps = []
    original = RecordedSearch.run
    monkeypatch.setattr(RecordedSearch, "run", lambda search, count: (steps.append(count), original(search, count)))
    monkeypatch.setattr(RecordedStepRunner, "can_chain_steps", property(lambda runner: runner._in_order))
    monkeypatch.setattr(Recordings, "should_read", lambda self, sources: True)
    return steps


@pytest.mark.parametrize(("kind", "config"), [*DECODERS.items(), ("pair", PAIR)], ids=[*DECODERS, "pair"])
def test_recorded_searches_equal_plain_searches(kind, config, launched_steps, count):
    """The searches run forwards and backwards to reuse recordings. Three inputs leave one of four rows unused.

    Without --full, most kinds of models run some of the searches only.
    """
    model = make(config)
    begin = BEGIN if config.n_encoder_layers else None
    names = list(BEAMS) if kind in ("pair", "rotary, grouped") else count(["short", "bias"], list(BEAMS))
    beams = {name: BEAMS[name] for name in names}
    plain = {name: generate(model, INPUTS, search, begin=begin, end=END) for name, search in beams.items()}
    assert not launched_steps
    record_steps(model)
    for name, search in [*beams.items(), *reversed(beams.items())]:
        assert_same(plain[name], generate(model, INPUTS, search, begin=begin, end=END))
        assert bool(launched_steps) == (name != "one token"), name
        launched_steps.clear()


@settings(max_examples=25, deadline=None)
@given(
    search=st.builds(
        GenerationConfig,
        max_new_tokens=st.integers(1, 12),
        num_beams=st.integers(2, 5),
        length_penalty=st.floats(-1, 2),
        min_new_tokens=st.integers(0, 1),
        early_stopping=st.sampled_from([True, False, "never"]),
        forced_eos_token_id=st.sampled_from([None, END, 9]),
        logit_bias=st.dictionaries(st.integers(3, 22), st.floats(-3, 3), max_size=3),
    ),
    inputs=st.lists(st.lists(st.integers(3, 22), min_size=1, max_size=40), min_size=1, max_size=5),
)
def test_random_recorded_searches_equal_plain_searches(search, inputs):
    model = make(PAIR)
    plain = generate(model, inputs, search, begin=BEGIN, end=END)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordedStepRunner, "can_chain_steps", property(lambda runner: runner._in_order))
        record_steps(model)
        assert_same(plain, generate(model, inputs, search, begin=BEGIN, end=END))


@pytest.mark.parametrize("search", UNRECORDED)
def test_searches_that_cannot_be_recorded_run_step_by_step(search, launched_steps):
    model = make(PAIR)
    plain = generate(model, INPUTS, UNRECORDED[search], begin=BEGIN, end=END)
    record_steps(model)
    assert_same(plain, generate(model, INPUTS, UNRECORDED[search], begin=BEGIN, end=END))
    assert not launched_steps


def test_few_steps_follow_after_the_last_sentence_is_decided(launched_steps):
    model = make(PAIR)
    model.get_parameter("head.out_proj.bias").data[END] = 50.0
    record_steps(model)
    generate(model, INPUTS, GenerationConfig(max_new_tokens=39, num_beams=2, length_penalty=0.0), begin=BEGIN, end=END)
    assert sum(launched_steps) <= 8


def test_nan_logits_raise_an_error(launched_steps):
    model = make(PAIR)
    model.get_parameter("head.out_proj.bias").data.fill_(float("nan"))
    record_steps(model)
    with pytest.raises(FloatingPointError, match="NaN"):
        generate(model, [[5]], GenerationConfig(max_new_tokens=9, num_beams=2), begin=BEGIN, end=END)


def test_nan_in_unused_rows_does_not_affect_the_others(launched_steps):
    model = make(PAIR)
    record_steps(model)
    search = replace(BEAMS["up to max_len"], suppress_tokens=(0,))
    plain = generate(model, INPUTS, search, begin=BEGIN, end=END)
    model.get_parameter("target_embeddings.tokens.weight").data[0] = float("nan")  # unused rows read token 0
    assert_same(plain, generate(model, INPUTS, search, begin=BEGIN, end=END))


def test_an_interrupted_search_does_not_affect_the_next(launched_steps, monkeypatch):
    model = make(PAIR)
    record_steps(model)
    plain = generate(model, INPUTS, BEAMS["short"], begin=BEGIN, end=END)
    with monkeypatch.context() as patch:
        patch.setattr(BeamSearch, "_collect", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            generate(model, INPUTS, BEAMS["short"], begin=BEGIN, end=END)
    assert_same(plain, generate(model, INPUTS, BEAMS["short"], begin=BEGIN, end=END))


def test_recorded_searches_work_without_an_end_token(launched_steps):
    model = make(PAIR)
    plain = generate(model, INPUTS, BEAMS["short"], begin=BEGIN, end=-1)
    record_steps(model)
    assert_same(plain, generate(model, INPUTS, BEAMS["short"], begin=BEGIN, end=-1))


def test_a_dropped_recording_is_freed_without_the_garbage_collector(launched_steps):
    model = make(PAIR)
    record_steps(model)
    generate(model, INPUTS, BEAMS["short"], begin=BEGIN, end=END)
    gc.collect()
    gc.disable()
    try:
        (recording,) = recordings_of(model)._free
        gone = weakref.ref(recording)
        del recording
        recordings_of(model)._free.clear()
        assert gone() is None
    finally:
        gc.enable()
