"""Compiled steps compute the same and use their own tensors. A stand-in replaces torch's slow compiler."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from glassformer.decoding import GenerationConfig, generate, record_steps
from glassformer.runtime.compiled_step import TESTED_TORCH, CompiledStep, split_bias_from_single_row_products
from recording import BEGIN, END, PAIR, assert_same, make

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Replace torch's compiler by one that returns the graph; return the list of graphs that it got."""
    graphs = []

    def compile_fx(graph, examples, config_patches):
        graphs.append(graph)
        return graph

    try:
        monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    except UnicodeDecodeError:
        pytest.skip("torch 2.13 reads its templates in the locale's encoding, and this locale is ASCII")
    return graphs


def test_two_compiled_steps_use_their_own_buffers():
    def count(buffer):
        buffer.add_(1)
        return buffer * 2

    first_buffer, second_buffer, third_buffer = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    first, second = (CompiledStep(partial(count, buffer), {}) for buffer in (first_buffer, second_buffer))
    assert [first()[0].item() for _ in range(3)] == [2, 4, 6]
    assert torch.backends.cpu.get_cpu_capability() in torch.compiler.config.cache_key_tag
    assert [second()[0].item() for _ in range(2)] == [2, 4]
    assert first_buffer.tolist() == [3, 3, 3]
    assert second_buffer.tolist() == [2, 2, 2]
    gone = weakref.ref(first_buffer)
    del first, first_buffer
    gc.collect()
    assert gone() is None, "a dropped step frees its tensors"

    def count_and_keep(buffer):
        kept["twice"] = buffer * 2
        return buffer + 1

    kept = {}
    with pytest.raises(Exception, match="expected the logits only"):
        CompiledStep(partial(count_and_keep, third_buffer), {})()


def test_each_step_has_its_own_code_object_beyond_torchs_limit(compiled):
    """torch compiles one code object a limited number of times. `CompiledStep` relies on torch internals for this."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert TESTED_TORCH[0] <= version <= TESTED_TORCH[1], (
        "check runtime/compiled_step.py with this torch, then extend the range"
    )
    count = torch._dynamo.config.recompile_limit + 2
    steps = [CompiledStep(partial(torch.add, torch.tensor([float(n)]), 1), {}) for n in range(count)]
    assert [step().item() for step in steps] == [step().item() for step in steps] == [n + 1 for n in range(count)]
    assert len(compiled) == count


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.full), 2])
def test_compiled_steps_encode_short_sources(compiled, beams):
    model = make(replace(PAIR, n_encoder_layers=1, n_decoder_layers=1))
    write = partial(generate, model, config=GenerationConfig(max_new_tokens=6, num_beams=beams), begin=BEGIN, end=END)
    inputs = (
        [[3, 4, 5], [6]],
        [[7, 9], [8, 4, 3, 5]],
        [[7] * 40, [8]],
    )  # the last are too long for a recording
    expected = [write(sources) for sources in inputs]
    record_steps(model, compile=True)
    for sources, texts in zip(inputs, expected, strict=True):
        assert_same(texts, write(sources))
    assert len(compiled) == 3, "one first step, and one step for each of two lengths"
    with pytest.raises(ValueError, match="input 1 holds the id 999"):
        write([[3], [999]])


@pytest.mark.parametrize(("rows", "added"), [(1, 2), (2, 0)])
def test_the_bias_of_a_single_row_product_is_added_separately(rows, added):
    first, second, split = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(3, 9)
    lines = []

    def compute(x):
        a, b, c = split(second(first(x).relu())).split(3, -1)
        return a + b * c

    def backend(graph, examples):
        before = len(graph.graph.nodes)
        split_bias_from_single_row_products(graph)
        lines.append(len(graph.graph.nodes) - before)
        return graph

    x = torch.randn(rows, 1, 4)
    with torch.inference_mode():
        torch.testing.assert_close(torch.compile(compute, backend=backend)(x), compute(x))
    assert lines == [added], "the bias of the product that is split stays"


def test_a_failed_cpp_wrapper_falls_back_to_python(monkeypatch):
    def compile_fx(graph, examples, config_patches):
        if config_patches:
            raise RuntimeError("CppCompileError: something was not declared")
        return graph

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    x = torch.ones(3)
    assert CompiledStep(lambda: x + 1, {"cpp_wrapper": True})().tolist() == [2, 2, 2]
    with pytest.raises(Exception, match="not declared"):
        CompiledStep(lambda: x + 2, {"coordinate_descent_tuning": True})()
