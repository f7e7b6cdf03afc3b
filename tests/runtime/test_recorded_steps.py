"""Recorded steps give the same texts as plain steps. On a CPU they use the same cache, rows and shapes as on a GPU."""

import copy
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.decoding import GenerationConfig, generate, record_steps, stream
from glassformer.runtime.recorded_steps import (
    MAX_RECORDINGS,
    ROW_STEPS,
    RecordedStepRunner,
    Recording,
    Shape,
)
from recording import BEGIN, DECODERS, END, FORGETFUL, PAIR, SEARCHES, assert_same, make, recordings_of


def both_ways(model, inputs, config, begin):
    """Return the texts of plain steps and of recorded steps."""
    recorded = copy.deepcopy(model)
    record_steps(recorded)
    return [generate(m, inputs, config, begin=begin, end=END, with_log_probs=True) for m in (model, recorded)]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", DECODERS)
def test_recorded_and_plain_steps_of_a_decoder_give_the_same_texts(name, search):
    inputs = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 3], [4, 4], [15, 3, 2]]
    assert_same(*both_ways(make(DECODERS[name]), inputs, SEARCHES[search], None))


@pytest.mark.parametrize("search", ["greedy", "samples", "rules"])
def test_recorded_and_plain_steps_agree_for_a_short_window(search):
    """Beam search is left out: of hypotheses with equal probability it may drop any, and their continuations differ."""
    inputs = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 3], [4, 4], [15, 3, 2]]
    assert_same(*both_ways(make(FORGETFUL), inputs, replace(SEARCHES[search], max_new_tokens=200), None))


@settings(max_examples=25, deadline=None)
@given(
    search=st.sampled_from(list(SEARCHES)),
    inputs=st.lists(st.lists(st.integers(3, 22), min_size=1, max_size=40), min_size=1, max_size=6),
)
def test_recorded_and_plain_steps_of_an_encoder_decoder_give_the_same_texts(search, inputs):
    assert_same(*both_ways(make(PAIR), inputs, SEARCHES[search], BEGIN))


def test_a_second_stream_reuses_the_recording_of_the_first():
    model = make(DECODERS["rotary, grouped"])
    expected = list(stream(model, [3, 4], SEARCHES["greedy"], end=END))
    record_steps(model)
    for _ in range(2):
        assert list(stream(model, [3, 4], SEARCHES["greedy"], end=END)) == expected
        assert len(recordings_of(model)._free) == 1


def test_two_streams_at_once_do_not_share_a_recording():
    model = make(DECODERS["learned positions"])
    expected = [list(stream(model, tokens, SEARCHES["greedy"], end=END)) for tokens in ([3, 4], [9, 8])]
    record_steps(model)
    streams = [stream(model, tokens, SEARCHES["greedy"], end=END) for tokens in ([3, 4], [9, 8])]
    found = [[], []]
    for _ in range(9):
        for texts, tokens in zip(found, streams, strict=True):
            texts.extend(token for token in [next(tokens, None)] if token is not None)
    assert found == expected


def test_a_recording_is_dropped_when_parameters_are_replaced():
    model = make(DECODERS["learned positions"])
    record_steps(model)
    generate(model, [[3, 4]], SEARCHES["greedy"], end=END)
    before = recordings_of(model)._free[0]
    model.float()
    found = generate(model, [[3, 4]], SEARCHES["greedy"], end=END)
    assert before not in recordings_of(model)._free
    assert found[0][0].tokens == generate(copy.deepcopy(model), [[3, 4]], SEARCHES["greedy"], end=END)[0][0].tokens


def test_the_number_of_recordings_is_limited():
    model = make(DECODERS["learned positions"])
    record_steps(model)
    for rows in ROW_STEPS:
        for length in (1, 33):
            generate(model, [[3] * length] * rows, replace(SEARCHES["greedy"], max_new_tokens=2), end=END)
    assert 2 * len(ROW_STEPS) > len(recordings_of(model)._free) == MAX_RECORDINGS


@given(rows=st.integers(1, 300), copies=st.integers(1, 5), capacity=st.integers(1, 96), length=st.integers(1, 200))
def test_rounded_shapes_hold_the_requested_rows_and_tokens(rows, copies, capacity, length):
    roomy = Recording.round_up(Shape(rows * copies, capacity, rows, length), max_len=96)
    assert roomy.rows >= rows * copies
    assert roomy.rows == roomy.memories * copies
    assert capacity <= roomy.capacity <= 96
    assert length <= roomy.memory_length <= max(length, 96)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch
def test_compiled_steps_give_the_same_texts():
    model = make(replace(DECODERS["rotary, grouped"], n_decoder_layers=1))
    expected = generate(model, [[5, 6, 7], [8]], SEARCHES["greedy"], end=END)
    record_steps(model, compile=True)
    try:
        found = generate(model, [[5, 6, 7], [8]], SEARCHES["greedy"], end=END)
    except Exception as error:
        causes = "CppCompileError", "InvalidCxxCompiler", "UnicodeDecodeError"
        if not any(cause in repr(error) for cause in causes):
            raise
        pytest.skip("torch's own compiler does not work here: no C++ compiler, an ASCII locale, or a CPU it fails for")
    assert_same(expected, found)


def test_rows_of_different_length_reach_max_len():
    model = make(DECODERS["learned positions"])
    inputs, config = [[3, 4, 5] * 8, [6]], GenerationConfig(max_new_tokens=30)
    assert_same(*both_ways(model, inputs, replace(config, min_new_tokens=30, suppress_tokens=(END,)), None))


def test_a_recording_whose_parameters_were_replaced_is_not_reused():
    model = make(DECODERS["learned positions"])
    record_steps(model)
    with recordings_of(model).borrow(Shape(1, 32)) as lent:
        model.float()
    with recordings_of(model).borrow(Shape(1, 32)) as other:
        assert other is not lent


def test_threads_never_share_a_recording():
    model = make(DECODERS["learned positions"])
    record_steps(model)
    recordings, seen, errors = recordings_of(model), set(), []

    def borrow():
        for _ in range(200):
            with recordings.borrow(Shape(1, 32)) as recording:
                if id(recording) in seen:
                    errors.append("lent twice")
                seen.add(id(recording))
                seen.discard(id(recording))

    threads = [threading.Thread(target=borrow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_any_of_several_end_tokens_ends_a_text():
    model = make(DECODERS["rotary, grouped"])
    (whole,) = generate(model, [[5, 6, 7]], SEARCHES["greedy"], end=END)[0]
    also = whole.tokens[-1]
    (cut,) = generate(model, [[5, 6, 7]], replace(SEARCHES["greedy"], eos_token_id=(also,)), end=END)[0]
    assert cut.tokens == whole.tokens[: whole.tokens.index(also)]
    assert cut.reason == "end"
    assert list(stream(model, [5, 6, 7], replace(SEARCHES["greedy"], eos_token_id=(also,)), end=END)) == cut.tokens


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("kind", "config"), [*DECODERS.items(), ("pair", PAIR)], ids=[*DECODERS, "pair"])
def test_running_one_step_ahead_gives_the_same_texts(search, kind, config, monkeypatch, count):
    """As on a GPU, a step starts before the tokens of the previous one are read, and rows leave in between.

    Without --full, most kinds of models write short texts only.
    """
    ran = []

    def can_run_ahead(runner):
        ran.append(runner)
        return runner.recording.cache.length < runner.recording.cache.capacity

    monkeypatch.setattr(RecordedStepRunner, "can_run_ahead", property(can_run_ahead))
    model = make(config)
    begin = BEGIN if config.n_encoder_layers else None
    inputs = [[5, 6, 7], [8, 9], [10], [11, 12, 13, 14]]
    every = (1, 9, 200)
    for limit in every if kind in ("pair", "rotary, grouped") else count((9,), every):
        assert_same(*both_ways(model, inputs, replace(SEARCHES[search], max_new_tokens=limit, min_new_tokens=0), begin))
    assert ran


def test_nan_in_a_returned_recording_does_not_affect_the_next_text():
    model = make(PAIR)
    record_steps(model)
    search = SEARCHES["greedy"]
    fine = generate(model, [[5, 6]], search, begin=BEGIN, end=END)
    with torch.inference_mode(), recordings_of(model).borrow(Shape(1, 9, 1, 2)) as recording:
        runner = RecordedStepRunner(model, recording, 1, torch.full((1, 2, 16), float("nan")))
        for _ in range(3):
            runner.step(torch.tensor([[BEGIN]]))
        assert any(layer.isnan().any() for layer in runner.cache.keys)
    shape = recording.shape
    assert [recording.shape for recording in recordings_of(model)._free].count(shape) >= 1
    assert generate(model, [[5, 6]], search, begin=BEGIN, end=END) == fine


@pytest.mark.parametrize("beams", [1, 2])
def test_nan_logits_raise_an_error_when_running_ahead(beams, monkeypatch):
    monkeypatch.setattr(RecordedStepRunner, "can_run_ahead", property(lambda runner: True))
    model = make(PAIR)
    model.get_parameter("head.out_proj.bias").data.fill_(float("nan"))
    record_steps(model)
    for limit in (1, 5):
        with pytest.raises(FloatingPointError, match="NaN"):
            generate(model, [[5]], GenerationConfig(max_new_tokens=limit, num_beams=beams), begin=BEGIN, end=END)
