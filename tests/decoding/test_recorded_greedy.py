"""Greedy search by recorded steps that read their own tokens gives the same texts as plain steps."""

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate, record_steps, stream
from glassformer.decoding.recorded_greedy import GreedyRunner, greedy_runner_for
from glassformer.runtime.choose_runner import ExpectedWork, open_runner
from glassformer.runtime.recorded_steps import (
    RecordedStepRunner,
    Recordings,
)
from recording import BEGIN, DECODERS, END, PAIR, SEARCHES, assert_same, make


@pytest.fixture
def asked_runners(monkeypatch):
    """Launch several greedy steps before reading results, as on a GPU; return the runners that were asked."""
    asked = []

    def watched(runner):
        asked.append(runner)
        return greedy_runner_for(runner) if type(runner) is RecordedStepRunner else None

    monkeypatch.setattr("glassformer.decoding.step_loop.greedy_runner_for", watched)
    monkeypatch.setattr(RecordedStepRunner, "can_chain_steps", property(lambda runner: runner._in_order))
    monkeypatch.setattr(Recordings, "should_read", lambda self, sources: True)
    return asked


GREEDY = {
    "up to max_len": GenerationConfig(max_new_tokens=200),
    "short": GenerationConfig(max_new_tokens=6),
    "one token": GenerationConfig(max_new_tokens=1),
    "minimum length": GenerationConfig(max_new_tokens=30, min_new_tokens=7),
    "bias": GenerationConfig(max_new_tokens=12, logit_bias={4: 2.0, 9: -3.0}, suppress_tokens=(7,), min_new_tokens=1),
    "forced end": GenerationConfig(max_new_tokens=5, forced_eos_token_id=END),
    "another forced token": GenerationConfig(max_new_tokens=4, forced_eos_token_id=9, min_new_tokens=2),
    "more end tokens": GenerationConfig(max_new_tokens=30, eos_token_id=(5, 6), min_new_tokens=2),
}


@pytest.mark.parametrize(("kind", "config"), [*DECODERS.items(), ("pair", PAIR)], ids=[*DECODERS, "pair"])
def test_chained_greedy_steps_equal_plain_steps(kind, config, asked_runners, count):
    """The searches run forwards and backwards to reuse recordings. Three inputs leave one of four rows unused.

    Without --full, most kinds of models run some of the searches only.
    """
    names = list(GREEDY) if kind in ("pair", "rotary, grouped") else count(["up to max_len", "bias"], list(GREEDY))
    searches = {name: GREEDY[name] for name in names}
    model = make(config)
    begin = BEGIN if config.n_encoder_layers else None
    inputs = [[5, 6, 7], [8, 9], [11, 12, 13, 14]]

    def write(search):
        found = generate(model, inputs, search, begin=begin, end=END)
        return found, list(stream(model, inputs[0], search, begin=begin, end=END))

    plain = {name: write(search) for name, search in searches.items()}
    asked_runners.clear()
    record_steps(model)
    for name, search in [*searches.items(), *reversed(searches.items())]:
        found, streamed = write(search)
        assert_same(plain[name][0], found)
        assert streamed == plain[name][1], name
    assert len(asked_runners) == 4 * len(searches)


def test_only_greedy_search_without_log_probabilities_chains_steps(asked_runners):
    model = make(PAIR)
    record_steps(model)
    for name, search in SEARCHES.items():
        generate(model, [[5, 6]], search, begin=BEGIN, end=END)
        assert bool(asked_runners) == (name == "greedy")
        asked_runners.clear()
    generate(model, [[5, 6]], SEARCHES["greedy"], begin=BEGIN, end=END, with_log_probs=True)
    assert not asked_runners


def test_steps_are_not_chained_after_rows_have_moved(monkeypatch):
    model = make(DECODERS["alibi"])
    record_steps(model)
    tokens = torch.tensor([[5], [6]])
    with open_runner(model, ExpectedWork(rows=2, capacity=8)) as runner:
        runner.step(tokens)
        assert greedy_runner_for(runner) is None, "it saves no time on a CPU"
        monkeypatch.setattr(RecordedStepRunner, "device", torch.device("cuda"))
        assert isinstance(greedy_runner_for(runner), GreedyRunner)
        monkeypatch.undo()
        runner.keep([1])
        monkeypatch.setattr(RecordedStepRunner, "device", torch.device("cuda"))
        assert greedy_runner_for(runner) is None


def test_a_stream_has_the_tokens_before_an_error(asked_runners):
    model = make(DECODERS["learned positions"])
    model.embeddings.positions.weight.data[4:] = torch.nan
    found = []
    for records in (False, True):
        if records:
            record_steps(model)
        found.append([])
        tokens = stream(model, [5], GenerationConfig(max_new_tokens=9, min_new_tokens=9), end=END)
        with pytest.raises(FloatingPointError, match="NaN"):
            found[-1].extend(tokens)
    assert len(found[0]) == 4
    assert found[1] == found[0]


def test_unusable_logits_raise_an_error_in_chained_steps(asked_runners):
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
