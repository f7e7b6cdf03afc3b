"""Which runner and kernels a model gets, and that a borrowed recording is always returned."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate, record_steps, stream
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import PLAIN, cpp_kernels
from glassformer.nn import capture_attention
from glassformer.runtime import choose_runner
from glassformer.runtime.choose_runner import (
    ExpectedWork,
    check_compile,
    choose_execution,
    choose_kernels,
    compile_steps,
    open_runner,
    situation_of,
)
from glassformer.runtime.packed_model import share_fused_storage
from glassformer.runtime.quantized_model import quantize
from recording import BEGIN, DECODERS, END, PAIR, SEARCHES, assert_same, make, recordings_of


def test_steps_are_plain_while_hooks_watch_the_model():
    model = make(PAIR)
    record_steps(model)
    with capture_attention(model) as captured:
        assert recordings_of(model) is None
        generate(model, [[5, 6, 7]], SEARCHES["greedy"], begin=BEGIN, end=END)
    assert captured
    assert recordings_of(model) is not None


def test_steps_are_plain_under_autocast():
    model = make(DECODERS["learned positions"]).float()
    record_steps(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert recordings_of(model) is None
        generate(model, [[3, 4]], SEARCHES["greedy"], end=END)


def test_a_recording_is_returned_when_the_block_ends():
    """It is also returned if the caller abandons a stream or the search raises."""
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


@pytest.mark.parametrize("was_built", [True, False])
def test_quantizing_a_copy_does_not_change_the_original_model(monkeypatch, was_built):
    """Its kernels and its results, to the last bit, stay the same after a copy of it was quantized."""
    model = make(replace(DECODERS["rotary, grouped"], d_model=64)).float()
    write = partial(generate, model, [[3, 4, 5], [6]], GenerationConfig(max_new_tokens=9), end=END, with_log_probs=True)
    try:
        kernels = cpp_kernels()
    except KernelBuildError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(choose_runner, "was_library_built", lambda: was_built)
    before = write()
    small = quantize(model)
    generate(small, [[3, 4, 5], [6]], GenerationConfig(max_new_tokens=9), end=END)
    assert choose_kernels(small) is kernels
    assert choose_kernels(model) is (kernels if was_built else PLAIN)
    assert write() == before


def test_steps_are_plain_where_attention_is_needed():
    model = make(DECODERS["learned positions"])
    record_steps(model)
    assert choose_execution(model, ExpectedWork(rows=1, capacity=8)).recordings is not None
    assert choose_execution(model, ExpectedWork(rows=1, capacity=8, needs_attention=True)).recordings is None


def test_a_cache_dtype_must_be_floating_point():
    with pytest.raises(ValueError, match=r"cache_dtype=torch.int8: expected a floating-point dtype"):
        record_steps(make(DECODERS["learned positions"]), cache_dtype=torch.int8)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_samples_get_a_memory_each_and_beams_share_one(shares_memory):
    work = ExpectedWork(
        rows=4, capacity=8, source=torch.tensor([[5, 6], [7, 8]]), copies=2, shares_memory=shares_memory
    )
    with torch.inference_mode(), open_runner(make(PAIR), work) as runner:
        assert len(runner.memory) == (2 if shares_memory else 4)
        assert runner.step(torch.full((4, 1), BEGIN)).shape == (4, PAIR.vocab_size)


def test_steps_are_compiled_on_request():
    model = make(DECODERS["learned positions"]).float()
    compile_steps(model)
    assert situation_of(model).records == "compiled"
    with pytest.raises(ValueError, match="compile='yes': expected one of auto, on, off"):
        check_compile("yes")


@pytest.mark.parametrize("config", [PAIR, DECODERS["learned positions"]])
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_model_with_fused_storage_is_recorded_as_its_twin(config, search):
    model = make(config)
    begin = BEGIN if config is PAIR else None
    inputs = [[5, 6, 7], [8]]
    plain = generate(model, inputs, SEARCHES[search], begin=begin, end=END)
    share_fused_storage(model)
    record_steps(model)
    work = ExpectedWork(rows=1, capacity=4)
    twin = choose_execution(model, work).model
    assert twin is not None
    assert choose_execution(model, work).model is twin
    assert_same(plain, generate(model, inputs, SEARCHES[search], begin=begin, end=END))
    with capture_attention(model):
        assert choose_execution(model, work).model is None
    model.to(torch.float32)  # the weights lie elsewhere now, so the twin is dropped
    assert choose_execution(model, work).model is None
    assert recordings_of(model).is_for(model)
