"""Benchmark workloads."""

import pytest
import torch

from glassformer.bench.workloads import Workload, workloads
from glassformer.models import preset


def test_workloads_have_the_named_sizes():
    assert {work.config.kind for work in workloads().values()} == {"encoder_decoder", "decoder"}
    assert workloads()["gpt2"].flops(1, 1) > 2 * 85e6 * 256  # at least two FLOPs per layer weight and token
    assert workloads()["translation"].flops(2, 1) == 2 * workloads()["translation"].flops(1, 1)


@pytest.mark.parametrize("beam", [1, 2])
def test_our_run_gives_texts_of_exactly_the_workloads_length(beam):
    work = Workload("gpt2", preset("tiny-gpt2"), "gpt2", 3, 5)
    inputs = work.inputs(2)
    assert [len(tokens) for tokens in inputs] == [3, 3]
    texts = work.ours(work.model(), inputs, beam)()
    assert [len(text) for text in texts] == [5, 5]
    search = work.search(beam)
    assert search.min_new_tokens == search.max_new_tokens == 5
    assert search.suppress_tokens == (work.padding,)


def test_models_and_inputs_are_the_same_in_every_run():
    work = Workload("llama", preset("tiny-llama"), "llama", 3, 5)
    assert work.inputs(4) == work.inputs(4)
    for one, two in zip(work.model().parameters(), work.model().parameters(), strict=True):
        assert torch.equal(one, two)


def test_bytes_grow_with_the_number_format_and_with_the_cache_of_each_beam():
    work = workloads()["gpt2"]
    assert work.bytes_moved(1, 1, 4) == 2 * work.bytes_moved(1, 1, 2)
    more = work.bytes_moved(1, 2, 4) - work.bytes_moved(1, 1, 4)
    assert more == work.bytes_moved(2, 1, 4) - work.bytes_moved(1, 1, 4) > 0


def test_a_ragged_workload_has_inputs_of_mixed_lengths():
    work = Workload("requests", preset("tiny-gpt2"), "gpt2", 9, 5, 2)
    lengths = [len(tokens) for tokens in work.inputs(40)]
    assert (min(lengths), max(lengths)) == (2, 9)
    assert work.mean_read == 5
    model = work.model()
    assert work.by_engine(model, work.inputs(4))() == work.ours(model, work.inputs(4), 1)()
