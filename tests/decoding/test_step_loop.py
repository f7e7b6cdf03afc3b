"""The decoding loop: seeds, ends, failures, and the choice of the next token."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.search_cases import END
from glassformer.decoding import GenerationConfig, generate
from glassformer.decoding.step_loop import SequenceState, TokenChooser, add_steps, add_tokens, close_gaps
from glassformer.decoding.text_stream import TextStream
from glassformer.models import build_model, preset
from oracle import random_model


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**64), top_k=st.integers(0, 4), temperature=st.floats(0.2, 3.0))
def test_a_seed_reproduces_all_samples_of_a_request(seed, top_k, temperature):
    torch.manual_seed(0)
    model = random_model(preset("tiny-llama"))
    config = GenerationConfig(
        max_new_tokens=6, do_sample=True, seed=seed, top_k=top_k, temperature=temperature, num_return_sequences=3
    )
    first = generate(model, [[5, 6]], config, end=END)
    assert first == generate(model, [[5, 6]], config, end=END)
    if top_k == 1:
        greedy = generate(model, [[5, 6]], GenerationConfig(max_new_tokens=6), end=END)
        assert all(written.tokens == greedy[0][0].tokens for written in first[0])


SEARCHES = [GenerationConfig(), GenerationConfig(num_beams=3), GenerationConfig(do_sample=True)]


@pytest.mark.parametrize("config", SEARCHES, ids=["greedy", "beam", "sample"])
def test_nan_logits_raise_an_error(config):
    model = build_model(preset("tiny-gpt2"))
    with torch.no_grad():
        model.decoder.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="NaN"):
        generate(model, [[5, 6]], config, end=END)


def sequence(*, max_new=9, number=0, **settings):
    return SequenceState(GenerationConfig(**settings), given=[5], max_new=max_new, number=number)


def chooser(*sequences, vocab_size=4):
    return TokenChooser(sequences, end=END, vocab_size=vocab_size, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("tokens", "written", "reason"),
    [([7, END], [7], "end"), ([7, 3], [7], "end"), ([7, 8, 9], [7, 8, 9], "length"), ([7, 8], [7, 8], None)],
)
def test_a_sequence_ends_at_an_end_token_or_at_its_limit(tokens, written, reason):
    state = sequence(max_new=3, eos_token_id=(3,))
    for token in tokens:
        state.add(token, END)
    assert state.written == written
    assert state.reason == reason


def test_the_samples_of_a_request_have_random_generators_of_their_own():
    first, second = (sequence(do_sample=True, seed=7, number=number) for number in (0, 1))
    numbers = first.random.random(5).tolist()
    assert numbers != second.random.random(5).tolist()
    assert numbers == sequence(do_sample=True, seed=7).random.random(5).tolist()


def test_log_probabilities_are_those_before_the_rules():
    state = sequence(prefix=(3,), min_new_tokens=1)  # only token 3 is allowed
    state.with_log_probs = True
    logits = torch.tensor([[0.0, 1.0, 5.0, 2.0]])
    assert chooser(state).choose(logits.clone()) == [3]
    assert state.log_probs == pytest.approx([logits.log_softmax(-1)[0, 3].item()], abs=1e-6)


@pytest.mark.parametrize(("forced", "written", "reason"), [(END, [3], "end"), (2, [3, 2], "length")])
def test_the_last_token_of_a_request_may_be_forced(forced, written, reason):
    state = sequence(max_new=2, max_new_tokens=2, forced_eos_token_id=forced)
    state.with_log_probs = True
    logits = torch.tensor([[0.0, 1.0, 2.0, 5.0]])
    assert [chooser(state).choose(logits.clone()) for _ in range(2)] == [[3], [forced]]
    assert (state.written, state.reason) == (written, reason)
    assert state.log_probs[1] == pytest.approx(logits.log_softmax(-1)[0, forced].item(), abs=1e-6)


def test_unusable_logits_fail_their_own_sequence_only():
    nan, forbidden, good = rows = [sequence() for _ in range(3)]
    assert add_tokens(rows, [float("nan"), float("-inf"), 1.0], [3.0, 2.0, 1.0], END) == [3, 2, 1]
    assert isinstance(nan.error, FloatingPointError)
    assert "forbid every token" in str(forbidden.error)
    assert [row.written for row in rows] == [[], [], [1]]
    assert good.reason is None


@pytest.mark.parametrize(
    ("settings", "is_greedy", "needs_tokens"),
    [
        ({}, True, False),
        ({"logit_bias": {3: 1.0}}, True, False),
        ({"do_sample": True}, False, False),
        ({"repetition_penalty": 1.5}, False, True),
    ],
)
def test_steps_run_ahead_only_where_no_rule_reads_the_tokens(settings, is_greedy, needs_tokens):
    choose = chooser(sequence(**settings))
    assert choose.is_greedy == is_greedy
    assert choose.needs_tokens == needs_tokens


def test_rows_from_the_end_take_the_places_of_those_that_ended():
    assert close_gaps([True, True, True]) == [0, 1, 2]
    assert close_gaps([True, False, True, False, True, True]) == [0, 4, 2, 5]
    assert close_gaps([True, True, False]) == [0, 1]
    assert close_gaps([False, False]) == []


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, ids):
        return "".join(chr(ord("a") + index) for index in ids)


@given(
    tokens=st.lists(st.lists(st.integers(1, 5), min_size=3, max_size=3), min_size=1, max_size=6),
    changes=st.sampled_from(
        [{}, {"eos_token_id": (4, 5)}, {"forced_eos_token_id": 3}, {"stop_strings": ("cd",)}, {"max_new_tokens": 3}]
    ),
    n_bad=st.integers(0, 1),
)
def test_the_tokens_of_several_steps_are_added_as_those_of_each_step(tokens, changes, n_bad):
    def start():
        request = GenerationConfig(**({"max_new_tokens": 5} | changes))
        streams = [TextStream(Letters(), request.stop_strings) for _ in range(3)]
        return [SequenceState(request, [0], request.max_new_tokens, stream=stream) for stream in streams]

    scores = [[1.0, 1.0, float("-inf") if n_bad and step == len(tokens) - 1 else 1.0] for step in range(len(tokens))]
    at_once, one_by_one = start(), start()
    failure = None
    try:
        add_steps(at_once, np.array([scores, tokens], dtype=np.float32).swapaxes(0, 1), END)
    except ValueError as error:
        failure = str(error)
    for highest, numbers in zip(scores, tokens, strict=True):
        running = [index for index, row in enumerate(one_by_one) if row.reason is None]
        rows = [one_by_one[index] for index in running]
        add_tokens(rows, [highest[index] for index in running], [numbers[index] for index in running], END)
    for row, right in zip(at_once, one_by_one, strict=True):
        assert (row.written, row.reason, row.text) == (right.written, right.reason, right.text)
    assert (failure is not None) == any(row.error is not None for row in one_by_one)
