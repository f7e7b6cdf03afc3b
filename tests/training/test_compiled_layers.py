"""The layers of a model share one compiled function, and can be restored."""

from functools import partial

import pytest
import torch
import torch._functorch.config as functorch_config
from torch.profiler import profile

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


@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("in_processes", [False, True])
def test_the_backward_pass_repeats_compiled_layers_with_checkpointing(monkeypatch, in_processes):
    """The repeated part has neither the last product nor a small result that is stored.

    Layers that gather weights of other processes are repeated as a whole.
    """
    compile_eagerly = partial(torch.compile, backend="aot_eager_decomp_partition")
    monkeypatch.setattr(compiled_layers.torch, "compile", compile_eagerly)
    torch.manual_seed(0)
    model = build_model(preset("tiny-llama", vocab_size=9)).train()
    n_layers, tokens = len(model.decoder.layers), torch.ones(1, 3, dtype=torch.long)

    def products_and_gradients():
        model.zero_grad()
        output = model(tokens).sum()
        with profile() as profiled:
            output.backward()
        products = [event for event in profiled.events() if event.name in ("aten::mm", "aten::addmm")]
        return len(products), [parameter.grad for parameter in model.parameters()]

    stored, right = products_and_gradients()
    model.set_gradient_checkpointing(True)
    compile_layers(model, in_processes=in_processes)
    assert model.decoder.gradient_checkpointing == in_processes
    repeated, found = products_and_gradients()
    torch.testing.assert_close(found, right)
    assert repeated == stored + n_layers * (7 if in_processes else 5)  # of 7 linear layers
    uncompile_layers(model)
    assert model.decoder.gradient_checkpointing
    torch.testing.assert_close(products_and_gradients()[1], right)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_layers_with_dropout_are_repeated_outside_of_the_compiled_code(monkeypatch, dropout):
    """Compiled code would drop other elements in the repetition, or store results to avoid that."""
    found = []

    def fake_compile(function):
        def run(*arguments, **keywords):
            found.append(functorch_config.activation_memory_budget)
            return function(*arguments, **keywords)

        return run

    monkeypatch.setattr(compiled_layers.torch, "compile", fake_compile)
    options = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": dropout, "n_decoder_layers": 2}
    model = build_model(preset("tiny-llama", vocab_size=9, **options)).train()
    model.set_gradient_checkpointing(True)
    compile_layers(model)
    assert model.decoder.gradient_checkpointing == bool(dropout)
    usual = functorch_config.activation_memory_budget
    assert usual != compiled_layers.KEPT_SHARE
    model(torch.ones(1, 3, dtype=torch.long))
    assert found == [usual if dropout else compiled_layers.KEPT_SHARE] * 2


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_a_repeated_layer_drops_what_it_dropped_before():
    """The gradient is the slope of the loss, with the same random numbers."""
    torch.manual_seed(0)
    options = {"dropout": 0.3, "n_decoder_layers": 1}
    model = build_model(preset("tiny-llama", vocab_size=9, **options)).double().train()
    model.set_gradient_checkpointing(True)
    compile_layers(model)
    direction = [torch.randn_like(parameter) for parameter in model.parameters()]

    def loss(distance):
        changed = [p + distance * d for p, d in zip(model.parameters(), direction, strict=True)]
        names = [name for name, _ in model.named_parameters()]
        torch.manual_seed(1)
        tokens = torch.arange(6)[None]
        return torch.func.functional_call(model, dict(zip(names, changed, strict=True)), tokens).square().sum()

    distance = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(distance), distance)
    right = (loss(1e-6) - loss(-1e-6)) / 2e-6
    torch.testing.assert_close(slope, right, rtol=1e-5, atol=0.0)


def test_attention_on_a_cpu_is_torch_s_choice():
    before = torch.backends.cuda.flash_sdp_enabled()
    with training_attention(torch.device("cpu"), long=True):
        assert torch.backends.cuda.flash_sdp_enabled() == before
