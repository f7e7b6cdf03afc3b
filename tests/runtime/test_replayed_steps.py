"""Decoding steps that a CPU replays from C++: texts equal those of plain steps."""

from dataclasses import replace

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate
from glassformer.kernels.cpp_library import KernelBuildError
from glassformer.kernels.kernel_registry import cpp_kernels
from glassformer.models import build_model, preset
from glassformer.runtime import choose_runner
from glassformer.runtime.packed_model import pack
from glassformer.runtime.quantized_model import quantize
from glassformer.runtime.replayed_steps import ReplayedRecording

try:
    cpp_kernels()
except KernelBuildError as error:
    pytest.skip(f"no C++ kernels: {error}", allow_module_level=True)

SEARCHES = {
    "greedy": GenerationConfig(max_new_tokens=12),
    "beams": GenerationConfig(max_new_tokens=12, num_beams=3, num_return_sequences=2),
    "samples": GenerationConfig(max_new_tokens=12, do_sample=True, temperature=2.0, num_return_sequences=2, seed=1),
}
FAMILIES = ("tiny-transformer-base", "tiny-gpt2", "tiny-llama", "tiny-t5-small")


def made(family, *, int8=True):
    torch.manual_seed(0)
    model = build_model(replace(preset(family), d_model=64, n_heads=4, n_kv_heads=None)).eval()
    if int8:
        return quantize(pack(model))
    choose_runner.use_compiled_kernels(model)
    return model


def texts_of(model, inputs, config):
    begin = 1 if model.config.n_encoder_layers else None
    found = generate(model, inputs, config, end=3, begin=begin)
    return [[text.tokens for text in texts] for texts in found]


@pytest.fixture
def recordings(monkeypatch):
    """The recordings that are made during a test."""
    made = []
    start = ReplayedRecording.__init__

    def noted(self, *args):
        made.append(self)
        start(self, *args)

    monkeypatch.setattr(ReplayedRecording, "__init__", noted)
    return made


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("family", FAMILIES)
def test_replayed_steps_write_the_same_texts(family, search, recordings, monkeypatch):
    """Texts of several lengths, so that the batch shrinks; two rounds, so that recordings are used again."""
    model, config = made(family), SEARCHES[search]
    torch.manual_seed(1)
    inputs = [torch.randint(5, 40, (length,)).tolist() for length in (2, 9, 5, 3, 7)]
    found = [texts_of(model, inputs, config) for _ in range(2)]
    n_made = len(recordings)
    assert n_made
    alone = [texts_of(model, [one], config)[0] for one in inputs]
    monkeypatch.setattr(choose_runner, "MAX_REPLAYED_ROWS", 0)
    plain = texts_of(model, inputs, config)
    assert found == [plain, plain]
    if search != "samples":  # the samples of an input depend on its place in the batch
        assert alone == plain


def test_float_models_replay_too(recordings, monkeypatch):
    model = made("tiny-llama", int8=False)
    found = texts_of(model, [[5, 6, 7], [8, 9]], SEARCHES["greedy"])
    assert recordings
    monkeypatch.setattr(choose_runner, "MAX_REPLAYED_ROWS", 0)
    assert found == texts_of(model, [[5, 6, 7], [8, 9]], SEARCHES["greedy"])


def test_changed_parameters_are_noticed(recordings):
    model = made("tiny-llama", int8=False)
    before = texts_of(model, [[5, 6, 7]], SEARCHES["greedy"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = torch.randn_like(parameter)
    fresh = made("tiny-llama", int8=False)
    fresh.load_state_dict(model.state_dict())
    after = texts_of(model, [[5, 6, 7]], SEARCHES["greedy"])
    assert after == texts_of(fresh, [[5, 6, 7]], SEARCHES["greedy"])
    assert after != before
