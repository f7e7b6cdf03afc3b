"""The layers of a model share one compiled function, and can be restored."""

import torch

from glassformer.models import build_model, preset
from glassformer.training import compiled_layers
from glassformer.training.compiled_layers import compile_layers, training_attention, uncompile_layers


def test_all_layers_call_one_compiled_function(monkeypatch):
    compiled, called = [], []

    def fake_compile(function):
        compiled.append(function)

        def run(layer, *arguments, **keywords):
            called.append(layer)
            return function(layer, *arguments, **keywords)

        return run

    monkeypatch.setattr(compiled_layers.torch, "compile", fake_compile)
    model = build_model(preset("tiny-transformer-base", vocab_size=9)).eval()
    tokens = torch.ones(1, 3, dtype=torch.long)
    right, names = model(tokens, tokens), set(model.state_dict())
    compile_layers(model)
    assert torch.equal(model(tokens, tokens), right)
    assert called == [*model.encoder.layers, *model.decoder.layers]
    assert len(compiled) == 1
    assert set(model.state_dict()) == names
    uncompile_layers(model)
    assert torch.equal(model(tokens, tokens), right)
    assert len(called) == len(model.encoder.layers) + len(model.decoder.layers)


def test_attention_on_a_cpu_is_torch_s_choice():
    before = torch.backends.cuda.flash_sdp_enabled()
    with training_attention(torch.device("cpu"), long=True):
        assert torch.backends.cuda.flash_sdp_enabled() == before
