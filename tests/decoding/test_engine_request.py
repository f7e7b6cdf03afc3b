"""Engine requests: their sizes, and when they are over."""

from dataclasses import replace

from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.step_loop import SequenceState
from recording import PAIR, SMALL, make


def request(**config):
    return EngineRequest([5, 6, 7], GenerationConfig(**config))


def test_a_request_needs_its_prompt_and_its_new_tokens_within_the_limit_of_the_model():
    model = make(replace(SMALL, max_len=10))
    assert request(max_new_tokens=4).size_for(model) == 7
    assert request(max_new_tokens=100).size_for(model) == 3 + 8
    pair = make(PAIR)
    assert request(max_new_tokens=30).size_for(pair) == 33
    assert request(max_new_tokens=30, max_source_ratio=1.0).size_for(pair) == 3 + 13


def test_rows_are_beams_or_samples():
    assert request(num_beams=4, num_return_sequences=2).n_rows == 4
    assert request(do_sample=True, num_return_sequences=3).n_rows == 3


def test_a_request_is_over_when_all_its_sequences_are():
    one = request(max_new_tokens=2)
    one.rows = [SequenceState(one.config, [5], 2, number) for number in range(2)]
    one.rows[0].add(9, end=0)
    one.rows[0].add(0, end=0)
    one.settle()
    assert not one.is_done
    one.rows[1].add(0, end=0)
    one.settle()
    assert one.is_done
    assert [text.tokens for text in one.texts] == [[9], []]


def test_one_failed_sequence_ends_the_request():
    one = request()
    one.rows = [SequenceState(one.config, [5], 2, number) for number in range(2)]
    one.rows[1].fail(ValueError("no"))
    one.settle()
    assert one.is_done
    assert isinstance(one.error, ValueError)
