"""The prompt reader: which prompts are read together, and what happens when reading fails."""

import pytest
import torch

from glassformer.decoding.engine_request import EngineRequest
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.open_batch import sequences_of
from glassformer.decoding.prompt_reader import PromptReader, Reading
from glassformer.decoding.running_batch import RunningBatch
from glassformer.runtime.choose_runner import open_pool
from glassformer.runtime.step_runner import inference
from recording import DECODERS, END, make

MODEL = make(DECODERS["rotary, grouped"])


def reader_with(*prompts, read_tokens=256):
    batch = RunningBatch(open_pool(MODEL, max_rows=8, max_tokens=320), end=END, keeps_texts=False)
    reader = PromptReader(batch, begin=None, read_tokens=read_tokens)
    for tokens in prompts:
        request = EngineRequest(tokens, GenerationConfig(max_new_tokens=3, suppress_tokens=(END,)))
        request.rows = sequences_of(MODEL, [tokens], request.config, None, [3])
        reader.readings.append(Reading(request, batch.runner.pool.take()))
    return reader


def lengths(group):
    return [len(reading.request.tokens) for reading in group]


def test_prompts_of_similar_length_are_read_together():
    reader = reader_with([5] * 4, [5] * 12, [5] * 3, [5] * 4)
    assert lengths(reader._next_group(100)) == [4, 3, 4]
    assert lengths(reader._next_group(11)) == [4, 3]
    assert lengths(reader._next_group(3)) == []


def test_prompts_whose_beginning_is_stored_are_read_with_others_that_attend_to_as_many_tokens():
    reader = reader_with([5] * 5, [5] * 4, [6] * 5, [5] * 3)
    with inference(MODEL):
        reader.batch.runner.read(reader.readings[0].places, [[5, 5]])
        reader.batch.runner.read(reader.readings[2].places, [[6, 6, 6]])
    assert [len(reading.unread) for reading in reader.readings] == [3, 4, 2, 3]
    assert lengths(reader._next_group(100)) == [5, 4, 5, 3]
    reader = reader_with([5] * 20, [5] * 2)
    with inference(MODEL):
        reader.batch.runner.read(reader.readings[0].places, [[5] * 18])
    assert lengths(reader._next_group(100)) == [20], "the other would attend to 18 tokens of padding"


def test_prompts_read_together_get_the_logits_that_they_get_alone():
    prompts, stored = [[5, 6, 7, 8, 9], [7, 8, 9, 5], [9, 8, 7, 6, 5]], [2, 0, 3]
    alone = []
    for prompt in prompts:
        reader = reader_with(prompt)
        with inference(MODEL):
            alone.append(reader.batch.runner.read(reader.readings[0].places, [prompt])[0])
    reader = reader_with(*prompts)
    runner, places = reader.batch.runner, [reading.places[0] for reading in reader.readings]
    with inference(MODEL):
        for place, prompt, count in zip(places, prompts, stored, strict=True):
            if count:
                runner.read([place], [prompt[:count]])
        together = runner.read(places, [reading.unread for reading in reader.readings])
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-5, atol=1e-5)


def test_complete_prompts_join_the_batch():
    reader = reader_with([5, 6], [7, 8, 9])
    with inference(MODEL):
        reader.read()
    assert reader.readings == []
    assert [len(member.sequence.written) for member in reader.batch.members] == [1, 1]


def steps_until_read(reader, request):
    """Return how many steps it takes until the prompt of a request is read. Nothing else is computed."""
    count = 0
    with inference(MODEL):
        while not request.rows[0].written:
            reader.read()
            count += 1
    return count


def test_a_step_reads_a_part_of_a_long_prompt_also_while_no_request_runs():
    reader = reader_with([5] * 30, read_tokens=8)
    request = reader.readings[0].request
    assert steps_until_read(reader, request) == 4


def test_a_short_prompt_waits_for_one_part_of_the_long_ones():
    reader = reader_with([5] * 30, [6] * 30, [7] * 3, read_tokens=8)
    assert steps_until_read(reader, reader.readings[2].request) == 2


def test_the_oldest_prompt_gets_every_second_step():
    reader = reader_with([5] * 38, *([number] * 20 for number in range(5, 9)), read_tokens=8)
    request = reader.readings[0].request
    assert steps_until_read(reader, request) <= 9, "5 parts, and a step for other prompts after each"


def test_a_canceled_prompt_is_read_no_further():
    reader = reader_with([5] * 30, [6] * 4, read_tokens=8)
    request = reader.readings[0].request
    with inference(MODEL):
        reader.read()
        request.is_canceled = True
        reader.leave()
        reader.read()
    assert request.is_done
    assert not reader.readings
    assert len(reader.batch.members) == 1


def test_a_failure_ends_the_requests_that_were_read_together_and_frees_their_rows(monkeypatch):
    reader = reader_with([5, 6], [7, 8], [5] * 20)
    read = reader.batch.runner.read

    def fail_for_two(places, texts):
        if len(places) == 2:
            raise RuntimeError("out of memory")
        return read(places, texts)

    monkeypatch.setattr(reader.batch.runner, "read", fail_for_two)
    requests = [reading.request for reading in reader.readings]
    with inference(MODEL):
        reader.read()
    assert [request.is_done for request in requests] == [True, True, False]
    assert reader.batch.runner.pool.n_busy == 1
    with pytest.raises(RuntimeError, match="out of memory"):
        raise requests[0].error
