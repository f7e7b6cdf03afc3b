"""Models whose layers are computed by C++ kernels have the losses and gradients of the plain models."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from glassformer.kernels.cpu_products import has_products
from glassformer.kernels.cpu_training import MAX_LENGTH, drop_numbers
from glassformer.models import DecoderModel, EncoderDecoderModel, EncoderModel, ModelConfig
from glassformer.nn import FeedForward, Mask, MultiHeadAttention, Stack, dropout
from glassformer.training import bf16_linear, cpu_functions
from glassformer.training.cpu_layers import CpuLayers
from glassformer.training.cpu_linear import MIN_ROWS, fast_linears
from glassformer.training.fused_loss import token_loss
from glassformer.training.stop_signals import Interrupted
from training.tiny_trainer import CONFIG, fingerprint, make_trainer

pytestmark = pytest.mark.usefixtures("training_kernels")


@pytest.fixture
def calls(monkeypatch):
    """Count the calls of each kernel."""
    counts = dict.fromkeys(("attend_rows", "silu_gate"), 0)

    def counting(name, function):
        def call(*arguments):
            counts[name] += 1
            return function(*arguments)

        return call

    for name in counts:
        monkeypatch.setattr(cpu_functions, name, counting(name, getattr(cpu_functions, name)))
    return counts


@pytest.fixture(autouse=True)
def same_dropout(monkeypatch):
    """Let plain layers drop the elements that the kernels drop for the same state of torch's generator."""

    def drop_plainly(x, p):
        seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
        return x * drop_numbers(torch.ones_like(x), p, seed)

    monkeypatch.setattr(dropout, "drop", drop_plainly)


def config(**options):
    sizes = {"vocab_size": 30, "d_model": 24, "n_heads": 4, "d_ff": 40, "max_len": 200, "head": "language_model"}
    return ModelConfig(**{**sizes, "dropout": 0.0, "embedding_dropout": 0.0, **options})


def compare(model, *inputs, layers=None, **options):
    """Check that loss and gradients are those of the plain model, and return the replaced layers."""
    layers = CpuLayers(model) if layers is None else layers
    results = []
    for context in (nullcontext(), layers.active()):
        model.zero_grad(set_to_none=True)
        with context:
            torch.manual_seed(3)
            found = model(*inputs, **options)
            (found.square().mean() + found[..., 0].mean()).backward()
        results.append((found.detach(), {name: p.grad for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-4, atol=2e-5)
    for name, gradient in results[0][1].items():
        other = results[1][1][name]
        assert (gradient is None) == (other is None), name
        if gradient is not None:
            torch.testing.assert_close(other, gradient, rtol=1e-3, atol=2e-5, msg=lambda text, at=name: f"{at}: {text}")
    return layers


def tokens(*shape):
    return torch.randint(4, 30, shape)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"positions": "rotary", "gated": True, "activation": "silu", "qk_norm": True},
        {"positions": "rotary", "rope_width": 4, "norm": "rms", "qk_norm": True, "n_kv_heads": 2},
        {"norm_placement": "post", "n_kv_heads": 1, "qkv_bias": False},
        {"positions": "relative", "n_decoder_layers": 1},
        {"dropout": 0.2, "embedding_dropout": 0.1, "gated": True, "activation": "silu"},
        {"dropout": 0.2, "attention_dropout": 0.2},
    ],
)
def test_encoder_decoders_with_padding(options):
    torch.manual_seed(0)
    model = EncoderDecoderModel(config(**{"n_encoder_layers": 2, "n_decoder_layers": 2, **options})).train()
    source, target = tokens(3, 9), tokens(3, 7)
    source_mask, target_mask = torch.ones(3, 9, dtype=torch.bool), torch.ones(3, 7, dtype=torch.bool)
    source_mask[1, 5:] = target_mask[2, 4:] = False
    compare(model, source, target, source_mask, target_mask)
    assert not any("forward" in vars(module) for module in model.modules())


def test_dropout_in_training_only():
    torch.manual_seed(0)
    model = DecoderModel(config(n_decoder_layers=1, dropout=0.3, embedding_dropout=0.3))
    ids, layers = tokens(2, 9), CpuLayers(model)
    attention = "attention (of up to 128 tokens, without score bias or window)"
    assert layers.in_words() == f"{attention}, activations, residual connections, dropout"
    with layers.active():
        first, second = model.train()(ids), model(ids)
        assert not torch.equal(first, second)
        found = model.eval()(ids)
    torch.testing.assert_close(found, model(ids))
    checkpointed = DecoderModel(config(n_decoder_layers=2, dropout=0.3, embedding_dropout=0.3)).train()
    checkpointed.decoder.gradient_checkpointing = True
    compare(checkpointed, ids)


def test_dropout_of_nothing_is_not_replaced():
    layers = [dropout.Dropout(p) for p in (0.0, 0.5)]
    assert list(CpuLayers(nn.Sequential(*layers)).replaced) == [layers[1]]


def test_decoders_and_encoders(calls):
    torch.manual_seed(0)
    compare(DecoderModel(config(n_decoder_layers=2, positions="rotary", norm="rms")).train(), tokens(2, 11))
    compare(DecoderModel(config(n_decoder_layers=1, positions="alibi")).train(), tokens(2, 11))
    assert calls["attend_rows"] == 2, "a score bias is not for the kernels"
    real = torch.ones(2, 11, dtype=torch.bool)
    real[1, 4:] = False
    compare(
        EncoderModel(config(n_encoder_layers=2, activation="gelu", positions="learned")).train(), tokens(2, 11), real
    )
    assert calls["attend_rows"] == 4


def test_sequences_beyond_the_kernels_length_are_computed_by_torch(calls):
    model = DecoderModel(config(n_decoder_layers=1)).train()
    compare(model, tokens(1, MAX_LENGTH + 1))
    assert calls["attend_rows"] == 0
    compare(model, tokens(1, MAX_LENGTH))
    assert calls["attend_rows"] == 1


@pytest.mark.parametrize(("options", "gates"), [({"gated": True, "activation": "silu"}, 4), ({}, 0)])
def test_gradient_checkpointing_computes_the_same_layers_again(calls, options, gates):
    model = DecoderModel(config(n_decoder_layers=2, **options)).train()
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        stack.gradient_checkpointing = True
    compare(model, tokens(2, 8))
    assert calls == {"attend_rows": 4, "silu_gate": gates}


@pytest.mark.parametrize("options", [{}, {"gated": True, "activation": "silu", "qk_norm": True}])
def test_with_the_linear_layers_of_arm(options):
    """They return views, which must not be changed in place."""
    torch.manual_seed(0)
    model = DecoderModel(config(n_decoder_layers=2, **options)).train()
    with fast_linears(model):
        compare(model, tokens(4, 2 * MIN_ROWS // 4))


@pytest.mark.parametrize("options", [{}, {"positions": "rotary", "gated": True, "activation": "silu", "qk_norm": True}])
def test_linear_layers_in_bf16(monkeypatch, options):
    """Gradients differ from those in float32 by the rounding of single numbers, which may change the sign of a relu."""
    if not has_products():
        pytest.skip("needs a CPU with AMX")
    counts, multiply = [], bf16_linear.linear_forward
    monkeypatch.setattr(bf16_linear, "linear_forward", lambda x, w, b: counts.append(len(w)) or multiply(x, w, b))
    torch.manual_seed(0)
    model = EncoderDecoderModel(config(n_encoder_layers=1, n_decoder_layers=1, **options)).train()
    source, target = tokens(3, 9), tokens(3, 7)
    layers, results = CpuLayers(model, in_bf16=True), []
    assert layers.in_words().startswith("linear layers in bf16, attention")
    assert "linear" not in CpuLayers(copy.deepcopy(model).requires_grad_(False), in_bf16=True).in_words()
    for context in (nullcontext(), layers.active()):
        model.zero_grad()
        with context:
            loss = token_loss(model, partial(model, source, target), target, smoothing=0.1, ignore=-1)
            loss.backward()
        results.append((loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    assert results[1][0] == pytest.approx(results[0][0], rel=0.01)
    assert (results[1][1] - results[0][1]).norm() < (0.02 if options else 0.1) * results[0][1].norm()
    ffn = [2, 1] if options else [1, 1]
    assert counts == [3, 1, *ffn, 3, 1, 1, 2, 1, *ffn]


def test_projections_whose_forward_was_replaced_compute_themselves():
    if not has_products():
        pytest.skip("needs a CPU with AMX")
    attention = MultiHeadAttention(16, 2)
    attention.k_proj.forward = torch.zeros_like
    ones = torch.ones(2, 20, 16)
    with CpuLayers(attention, in_bf16=True).active():
        same = attention(ones + torch.arange(20.0)[:, None])
    assert torch.equal(same[:, 0], same[:, 19]), "all keys are 0, so that each query attends to all values equally"


@pytest.mark.parametrize("batches", [1, 2])
def test_tied_embeddings_have_dense_gradients(batches):
    """With and without the output layer, whose gradient is added."""
    torch.manual_seed(0)
    model = EncoderDecoderModel(config(n_encoder_layers=1, n_decoder_layers=1, tie="all", output_bias=False)).train()
    layers = CpuLayers(model)
    assert sum(type(module) is nn.Embedding for module in layers.replaced) == 1
    (table,) = {module for module in layers.replaced if type(module) is nn.Embedding}
    source, target = tokens(3, 9) // 3, tokens(3, 7)
    for has_output in (True, False):
        results = []
        for context in (nullcontext, layers.active):
            model.zero_grad()
            for _ in range(batches):
                with context():
                    found = model(source, target) if has_output else table(source)
                    found.square().sum().backward()
            assert table.weight.grad.layout == torch.strided
            results.append(table.weight.grad)
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_other_embeddings_are_left_alone():
    untied = EncoderDecoderModel(config(n_encoder_layers=1, n_decoder_layers=1, tie="none"))
    frozen = EncoderDecoderModel(config(n_encoder_layers=1, n_decoder_layers=1, tie="all")).requires_grad_(False)
    for model in (untied, frozen):
        assert not any(type(module) is nn.Embedding for module in CpuLayers(model).replaced)


@pytest.mark.parametrize(
    "rule", [{"padding_idx": 2}, {"max_norm": 0.1}, {"scale_grad_by_freq": True}, {"sparse": True}]
)
def test_tied_embeddings_with_rules_of_their_own_are_left_alone(rule):
    torch.manual_seed(0)
    model = DecoderModel(config(n_decoder_layers=1, tie="output"))
    late = CpuLayers(model)
    ids, table, gradients = torch.tensor([[2, 2, 5, 6]]), model.embeddings.tokens, []
    for name, value in rule.items():
        setattr(table, name, value)
    assert table not in CpuLayers(model).replaced
    assert table in late.replaced
    for context in (nullcontext(), late.active()):
        model.zero_grad()
        with context:
            model(ids).square().sum().backward()
        gradients.append(table.weight.grad)
    torch.testing.assert_close(gradients[1].to_dense(), gradients[0].to_dense(), rtol=1e-4, atol=1e-5)


def test_two_backward_passes_of_a_tied_embedding_with_narrow_ids():
    torch.manual_seed(0)
    model, gradients = DecoderModel(config(n_decoder_layers=1, tie="output")), []
    batches = [tokens(2, 5).int(), tokens(1, 3)]
    for context in (nullcontext(), CpuLayers(model).active()):
        model.zero_grad()
        with context:
            for ids in batches:
                model(ids).square().sum().backward()
        gradients.append(model.embeddings.tokens.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


def test_frozen_layers():
    torch.manual_seed(0)
    model = DecoderModel(config(n_decoder_layers=2, qk_norm=True)).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name and "q_proj" in name)
    compare(model, tokens(2, 8))


def test_hooks_on_linear_layers_see_three_dimensions():
    ffn, seen = FeedForward(8, 16), []
    ffn.down_proj.register_forward_hook(lambda module, given, found: seen.append(found.shape))
    with CpuLayers(ffn).active():
        ffn(torch.randn(2, 5, 8)).sum().backward()
    assert seen == [(2, 5, 8)]


def test_other_dtypes_and_masks_are_computed_by_torch(calls):
    attention = MultiHeadAttention(16, 2)
    layers = CpuLayers(attention)
    x = torch.randn(2, 5, 16)
    with layers.active():
        attention(x, mask=Mask(causal=True, window=2))
        attention(x, mask=Mask(allowed=torch.ones(1, 1, 5, 5, dtype=torch.bool)))
        attention(x[:, :0])
        with torch.autocast("cpu", torch.bfloat16):
            attention(x)
        assert calls["attend_rows"] == 0
        attention(x)
    assert calls["attend_rows"] == 1
    wide = attention.double()
    with CpuLayers(wide).active():
        wide(x.double())
    assert calls["attend_rows"] == 1


def test_hooks_see_the_attention_of_replaced_layers():
    attention, seen = MultiHeadAttention(16, 2), []
    attention.attend.register_forward_hook(lambda module, given, found: seen.append(found.shape))
    with CpuLayers(attention).active():
        attention(torch.randn(2, 5, 16))
    assert seen == [(2, 2, 5, 8)]


def test_a_replaced_forward_is_kept():
    ffn = FeedForward(8, 16)
    ffn.forward = lambda x: x
    assert not CpuLayers(ffn).replaced


@pytest.mark.parametrize(
    ("layer", "part"),
    [
        (MultiHeadAttention(8, 2, qk_norm="layer"), "q_norm"),
        (MultiHeadAttention(8, 2, qk_norm="rms"), "k_norm"),
        (MultiHeadAttention(8, 2), "attend"),
        (FeedForward(8, 16, dropout=0.1), "dropout"),
    ],
)
def test_layers_with_a_part_whose_forward_was_replaced_stay_plain(layer, part):
    assert layer in CpuLayers(layer).replaced
    getattr(layer, part).forward = lambda *given, **options: given[0]
    assert layer not in CpuLayers(layer).replaced


def test_a_gradient_that_others_need_is_not_written_over():
    torch.manual_seed(0)
    ffn, x, gradients = FeedForward(8, 8), torch.randn(1, 3, 8, requires_grad=True), []
    ffn.down_proj = nn.Identity()
    for context in (nullcontext(), CpuLayers(ffn).active()):
        x.grad = None
        with context:
            (x + ffn(x)).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_soft_caps_and_clipped_queries_are_left_alone():
    softcap, clipped = MultiHeadAttention(8, 2, softcap=5.0), MultiHeadAttention(8, 2, clip_qkv=1.0)
    both = nn.ModuleList([softcap, clipped, MultiHeadAttention(8, 2, qk_norm="layer", qk_norm_over="all_heads")])
    assert not CpuLayers(both).replaced


def make(folder, **options):
    """Return a small trainer whose layers the kernels compute."""
    trainer = make_trainer(folder, replace(CONFIG, **options))
    trainer.setup.use_cpu_kernels()
    trainer.gradients = trainer.setup.gradients()
    return trainer


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stopped_run_resumes_with_the_same_bits(tmp_path, calls, precision):
    if precision == "bf16" and not has_products():
        pytest.skip("needs a CPU with AMX")
    right = fingerprint(make(tmp_path / "whole", precision=precision).run())
    assert calls["attend_rows"] > 0

    stopped = make(tmp_path / "stopped", precision=precision)

    def stop(update):
        if update.position == 4:
            stopped._signals.received = 15

    stopped.on_update = stop
    with pytest.raises(Interrupted):
        stopped.run()
    assert fingerprint(make(tmp_path / "stopped", precision=precision).run()) == right


def test_training_learns_as_with_torch(tmp_path):
    losses = []
    for name, builder in (("plain", lambda folder, **o: make_trainer(folder, replace(CONFIG, **o))), ("kernels", make)):
        trainer = builder(tmp_path / name, accumulate=1, average_last=0)
        trainer.run()
        losses.append([evaluation.scores["loss"] for evaluation in trainer.state.evaluations])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
