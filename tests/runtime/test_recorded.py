"""Recorded steps write what plain steps write. Here they are played without a GPU: the same cache, rows and shapes."""

import copy
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.decoding import GenerationConfig, generate, record_steps, stream
from glassformer.decoding.recorded_greedy import GreedyRunner, greedy_runner_for
from glassformer.nn import capture_attention
from glassformer.runtime.choose_runner import ExpectedWork, open_runner
from glassformer.runtime.recorded import (
    MAX_RECORDINGS,
    ROW_STEPS,
    RecordedStepRunner,
    Recordings,
    Shape,
    _round_up,
)
from recording import BEGIN, DECODERS, END, FORGETFUL, PAIR, assert_same, make, recordings_of

SEARCHES = {
    "greedy": GenerationConfig(max_new_tokens=9),
    "samples": GenerationConfig(max_new_tokens=9, do_sample=True, num_return_sequences=3, seed=5),
    "rules": GenerationConfig(max_new_tokens=9, repetition_penalty=1.5, min_new_tokens=3),
    "beam": GenerationConfig(max_new_tokens=9, num_beams=3, num_return_sequences=2),
    "groups": GenerationConfig(max_new_tokens=9, num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
}


def both_ways(model, inputs, config, begin):
    recorded = copy.deepcopy(model)
    record_steps(recorded)
    return [generate(m, inputs, config, begin=begin, end=END, with_log_probs=True) for m in (model, recorded)]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_writes_the_same(name, search):
    inputs = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 3], [4, 4], [15, 3, 2]]
    assert_same(*both_ways(make(DECODERS[name]), inputs, SEARCHES[search], None))


@pytest.mark.parametrize("search", ["greedy", "samples", "rules"])
def test_a_decoder_that_soon_forgets_writes_the_same(search):
    """Not with beams: of several texts with one probability any may be dropped, and what would follow it is lost."""
    inputs = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 3], [4, 4], [15, 3, 2]]
    assert_same(*both_ways(make(FORGETFUL), inputs, replace(SEARCHES[search], max_new_tokens=200), None))


@settings(max_examples=25, deadline=None)
@given(
    search=st.sampled_from(list(SEARCHES)),
    inputs=st.lists(st.lists(st.integers(3, 22), min_size=1, max_size=40), min_size=1, max_size=6),
)
def test_an_encoder_decoder_writes_the_same(search, inputs):
    assert_same(*both_ways(make(PAIR), inputs, SEARCHES[search], BEGIN))


def test_a_stream_is_the_same_and_a_second_one_uses_the_recording_again():
    model = make(DECODERS["rotary, grouped"])
    expected = list(stream(model, [3, 4], SEARCHES["greedy"], end=END))
    record_steps(model)
    for _ in range(2):
        assert list(stream(model, [3, 4], SEARCHES["greedy"], end=END)) == expected
        assert len(recordings_of(model)._free) == 1


def test_two_runners_at_once_do_not_share_a_recording():
    model = make(DECODERS["learned positions"])
    expected = [list(stream(model, tokens, SEARCHES["greedy"], end=END)) for tokens in ([3, 4], [9, 8])]
    record_steps(model)
    streams = [stream(model, tokens, SEARCHES["greedy"], end=END) for tokens in ([3, 4], [9, 8])]
    found = [[], []]
    for _ in range(9):
        for texts, tokens in zip(found, streams, strict=True):
            texts.extend(token for token in [next(tokens, None)] if token is not None)
    assert found == expected


def test_replaced_parameters_are_noticed():
    model = make(DECODERS["learned positions"])
    record_steps(model)
    generate(model, [[3, 4]], SEARCHES["greedy"], end=END)
    before = recordings_of(model)._free[0]
    model.float()
    found = generate(model, [[3, 4]], SEARCHES["greedy"], end=END)
    assert before not in recordings_of(model)._free
    assert found[0][0].tokens == generate(copy.deepcopy(model), [[3, 4]], SEARCHES["greedy"], end=END)[0][0].tokens


def test_whoever_looks_on_sees_every_step():
    model = make(PAIR)
    record_steps(model)
    with capture_attention(model) as captured:
        assert recordings_of(model) is None
        generate(model, [[5, 6, 7]], SEARCHES["greedy"], begin=BEGIN, end=END)
    assert captured
    assert recordings_of(model) is not None


def test_few_recordings_are_kept():
    model = make(DECODERS["learned positions"])
    record_steps(model)
    for rows in ROW_STEPS:
        for length in (1, 33):
            generate(model, [[3] * length] * rows, replace(SEARCHES["greedy"], max_new_tokens=2), end=END)
    assert 2 * len(ROW_STEPS) > len(recordings_of(model)._free) == MAX_RECORDINGS


@given(rows=st.integers(1, 300), copies=st.integers(1, 5), capacity=st.integers(1, 96), length=st.integers(1, 200))
def test_there_is_room_for_what_was_asked(rows, copies, capacity, length):
    roomy = _round_up(Shape(rows * copies, capacity, rows, length), max_len=96)
    assert roomy.rows >= rows * copies
    assert roomy.rows == roomy.memories * copies
    assert capacity <= roomy.capacity <= 96
    assert length <= roomy.memory_length <= max(length, 96)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of torch's own
def test_a_compiled_step_writes_the_same():
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


def test_rows_of_unlike_length_reach_the_limit_of_the_model():
    model = make(DECODERS["learned positions"])
    inputs, config = [[3, 4, 5] * 8, [6]], GenerationConfig(max_new_tokens=30)
    assert_same(*both_ways(model, inputs, replace(config, min_new_tokens=30, suppress_tokens=(END,)), None))


def test_under_autocast_nothing_is_recorded():
    model = make(DECODERS["learned positions"]).float()
    record_steps(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert recordings_of(model) is None
        generate(model, [[3, 4]], SEARCHES["greedy"], end=END)


def test_a_recording_of_replaced_parameters_is_never_lent_again():
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


def test_more_than_one_token_may_end_a_text():
    model = make(DECODERS["rotary, grouped"])
    (whole,) = generate(model, [[5, 6, 7]], SEARCHES["greedy"], end=END)[0]
    also = whole.tokens[-1]
    (cut,) = generate(model, [[5, 6, 7]], replace(SEARCHES["greedy"], eos_token_id=(also,)), end=END)[0]
    assert cut.tokens == whole.tokens[: whole.tokens.index(also)]
    assert cut.reason == "end"
    assert list(stream(model, [5, 6, 7], replace(SEARCHES["greedy"], eos_token_id=(also,)), end=END)) == cut.tokens


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("config", [*DECODERS.values(), PAIR], ids=[*DECODERS, "pair"])
def test_a_step_ahead_changes_nothing(search, config, monkeypatch):
    """As on a GPU: the next step is taken before the last one's tokens are known, and rows leave in between."""
    ran = []

    def can_run_ahead(runner):
        ran.append(runner)
        return runner.recording.cache.length < runner.recording.cache.capacity

    monkeypatch.setattr(RecordedStepRunner, "can_run_ahead", property(can_run_ahead))
    model = make(config)
    begin = BEGIN if config.n_encoder_layers else None
    inputs = [[5, 6, 7], [8, 9], [10], [11, 12, 13, 14]]
    for limit in (1, 9, 200):
        assert_same(*both_ways(model, inputs, replace(SEARCHES[search], max_new_tokens=limit, min_new_tokens=0), begin))
    assert ran


@pytest.fixture
def feeding(monkeypatch):
    """As on a GPU: greedy steps are made several at once, before anybody has seen what came of the last ones."""
    fed = []

    def watched(runner, tokens):
        fed.append(runner)
        return greedy_runner_for(runner, tokens) if type(runner) is RecordedStepRunner else None

    monkeypatch.setattr("glassformer.decoding.step_loop.greedy_runner_for", watched)
    monkeypatch.setattr(RecordedStepRunner, "can_chain_steps", property(lambda runner: runner._in_order))
    monkeypatch.setattr(Recordings, "should_read", lambda self, sources: True)
    return fed


PLAIN = {
    "to the end": GenerationConfig(max_new_tokens=200),
    "short": GenerationConfig(max_new_tokens=6),
    "one": GenerationConfig(max_new_tokens=1),
    "not too short": GenerationConfig(max_new_tokens=30, min_new_tokens=7),
    "bias": GenerationConfig(max_new_tokens=12, logit_bias={4: 2.0, 9: -3.0}, suppress_tokens=(7,), min_new_tokens=1),
    "more ends": GenerationConfig(max_new_tokens=30, eos_token_id=(5, 6), min_new_tokens=2),
}


@pytest.mark.parametrize("config", [*DECODERS.values(), PAIR], ids=[*DECODERS, "pair"])
def test_a_recording_that_feeds_itself_changes_nothing(config, feeding):
    """One after the other, so that they use the same recordings; three inputs leave a row of four free."""
    model = make(config)
    begin = BEGIN if config.n_encoder_layers else None
    inputs = [[5, 6, 7], [8, 9], [11, 12, 13, 14]]

    def write(search):
        found = generate(model, inputs, search, begin=begin, end=END)
        return found, list(stream(model, inputs[0], search, begin=begin, end=END))

    plain = {name: write(search) for name, search in PLAIN.items()}
    feeding.clear()
    record_steps(model)
    for name, search in [*PLAIN.items(), *reversed(PLAIN.items())]:
        found, streamed = write(search)
        assert_same(plain[name][0], found)
        assert streamed == plain[name][1], name
    assert len(feeding) == 4 * len(PLAIN)


def test_rows_that_have_moved_are_not_fed(monkeypatch):
    model = make(DECODERS["alibi"])
    record_steps(model)
    tokens = torch.tensor([[5], [6]])
    with open_runner(model, ExpectedWork(rows=2, capacity=8)) as runner:
        runner.step(tokens)
        assert greedy_runner_for(runner, tokens) is None, "on a CPU it saves no time"
        monkeypatch.setattr(RecordedStepRunner, "device", torch.device("cuda"))
        assert isinstance(greedy_runner_for(runner, tokens), GreedyRunner)
        monkeypatch.undo()
        runner.keep([1])
        monkeypatch.setattr(RecordedStepRunner, "device", torch.device("cuda"))
        assert greedy_runner_for(runner, tokens[1:]) is None


def test_a_recording_is_returned_when_the_block_ends():
    """Also where the caller abandons a stream half way, or the search raises."""
    model = make(DECODERS["learned positions"])
    record_steps(model)
    tokens = stream(model, [3, 4], SEARCHES["greedy"], end=END)
    next(tokens)
    assert not recordings_of(model)._free
    tokens.close()
    assert len(recordings_of(model)._free) == 1

    def fail():
        with torch.inference_mode(), open_runner(model, ExpectedWork(rows=1, capacity=8)):
            assert not recordings_of(model)._free
            raise RuntimeError("by hand")

    with pytest.raises(RuntimeError, match="by hand"):
        fail()
    assert len(recordings_of(model)._free) == 1


def test_a_broken_text_leaves_nothing_behind():
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


def test_only_plain_greedy_search_feeds_itself(feeding):
    model = make(PAIR)
    record_steps(model)
    for name, search in SEARCHES.items():
        generate(model, [[5, 6]], search, begin=BEGIN, end=END)
        assert bool(feeding) == (name == "greedy")
        feeding.clear()
    generate(model, [[5, 6]], SEARCHES["greedy"], begin=BEGIN, end=END, with_log_probs=True)
    assert not feeding


def test_broken_scores_are_told_while_it_feeds_itself(feeding):
    model = make(PAIR)
    model.get_parameter("head.out_proj.bias").data.fill_(float("nan"))
    record_steps(model)
    with pytest.raises(FloatingPointError, match="NaN"):
        generate(model, [[5]], GenerationConfig(max_new_tokens=5), begin=BEGIN, end=END)
    everything = GenerationConfig(max_new_tokens=5, suppress_tokens=tuple(range(PAIR.vocab_size)))
    model = make(PAIR)
    record_steps(model)
    with pytest.raises(ValueError, match="forbid every token"):
        generate(model, [[5]], everything, begin=BEGIN, end=END)


@pytest.mark.parametrize("beams", [1, 2])
def test_broken_scores_are_told_a_step_later(beams, monkeypatch):
    monkeypatch.setattr(RecordedStepRunner, "can_run_ahead", property(lambda runner: True))
    model = make(PAIR)
    model.get_parameter("head.out_proj.bias").data.fill_(float("nan"))
    record_steps(model)
    for limit in (1, 5):
        with pytest.raises(FloatingPointError, match="NaN"):
            generate(model, [[5]], GenerationConfig(max_new_tokens=limit, num_beams=beams), begin=BEGIN, end=END)
