"""A stack by fused kernels equals the stack by its modules."""

from dataclasses import replace

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from typing_extensions import override

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn.layers import Layer
from glassformer.nn.masks import Mask
from glassformer.runtime.packed_model import pack
from recording import DECODERS, PAIR, SMALL, make

PRE = replace(SMALL, norm_placement="pre")
GATED = replace(PRE, positions="rotary", n_kv_heads=2, norm="rms", gated=True, activation="silu")
OTHERS = ("parallel", "sandwich, capped", "experts")
"""Decoders that are computed by their modules."""
CONFIGS = {name: config for name, config in DECODERS.items() if name not in OTHERS}
CONFIGS |= {f"{name}, pre-norm": replace(config, norm_placement="pre") for name, config in CONFIGS.items()}
CONFIGS |= {
    "gated": GATED,
    "norms of queries and keys": replace(GATED, qk_norm=True),
    "without final norm": replace(PRE, final_norm=False),
    "one layer, applied twice": replace(PRE, share_layers=True),
}
PAIRS = {
    "post-norm": replace(PAIR, positions="learned"),
    "pre-norm": replace(PAIR, positions="learned", norm_placement="pre"),
    "relative, without biases": replace(
        PAIR, positions="relative", norm="rms", norm_placement="pre", ffn_bias=False, out_bias=False
    ),
}


class Joining(KernelSet):
    """Plain kernels that return partial sums, and count the norms that they compute with a residual sum."""

    def __init__(self):
        self.n_norms = 0

    @override
    def can_fuse_linear(self, x):
        return not torch.is_grad_enabled() and x.shape[0] * x.shape[1] <= 12

    @override
    def linear_in_parts(self, x, weight):
        half = x.shape[-1] // 2
        return torch.stack([x[..., :half] @ weight[:, :half].T, x[..., half:] @ weight[:, half:].T])

    @override
    def add_and_normalize(self, x, parts, bias, norm):
        self.n_norms += norm is not None
        return super().add_and_normalize(x, parts, bias, norm)


class Normalizing(Joining):
    """The same kernels for so few tokens that a product computes the norm before it."""

    @override
    def fuses_norms(self, x):
        return True


def logits_of(model, parts, kernels):
    cache = model.new_cache(2, 20)
    cache.kernels = kernels
    return torch.cat([model(part, cache=cache) for part in parts], 1)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_fused_stack_computes_what_the_modules_compute(config):
    model = pack(make(config))
    parts = torch.randint(3, 23, (2, 13)).split([8, 3, 2], 1)  # the first part has too many tokens for the kernels
    kernels = Joining()
    with torch.inference_mode():
        assert torch.allclose(logits_of(model, parts, kernels), logits_of(model, parts, KernelSet()))
    assert kernels.n_norms == 2 * (2 * model.decoder.depth + (model.decoder.norm is not None))


@pytest.mark.parametrize("n_beams", [1, 3])
@pytest.mark.parametrize("config", PAIRS.values(), ids=PAIRS)
def test_a_fused_stack_attends_to_the_encoder_output_after_the_first_step(config, n_beams):
    model, kernels = pack(make(config)), Joining()
    source, mask = torch.randint(3, 23, (2, 7)), torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    tokens = torch.randint(3, 23, (2 * n_beams, 4)).split(1, 1)

    def steps(used):
        memory = model.encode(source, mask)
        cache = model.new_cache(2 * n_beams, 8, 7, 2)
        cache.kernels = used
        return torch.cat([model.apply_head(model.decode(part, memory, mask, cache=cache)) for part in tokens], 1)

    with torch.inference_mode():
        assert torch.allclose(steps(kernels), steps(KernelSet()))
    assert kernels.n_norms == 3 * (2 * 3 + (model.decoder.norm is not None))


@pytest.mark.parametrize("config", PAIRS.values(), ids=PAIRS)
def test_an_encoder_is_a_fused_stack_too(config):
    model, kernels = pack(make(config)), Joining()
    source, mask = torch.randint(3, 23, (2, 6)), torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    with torch.inference_mode():
        assert torch.allclose(model.encode(source, mask, kernels=kernels), model.encode(source, mask))
    assert kernels.n_norms == 2 * model.encoder.depth + (model.encoder.norm is not None)


def test_the_first_step_is_fused_if_the_cache_has_the_memory():
    model, kernels = pack(make(PAIRS["pre-norm"])), Joining()
    source, mask = torch.randint(3, 23, (2, 7)), torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    with torch.inference_mode():
        memory, found = model.encode(source, mask), []
        for is_stored in (False, True):
            cache = model.new_cache(2, 8, 7)
            cache.kernels = kernels
            if is_stored:
                model.store_memory(memory, cache)
            found.append(model.decode(torch.tensor([[5], [6]]), memory, mask, cache=cache))
    assert torch.allclose(*found)
    assert kernels.n_norms == 3 * model.decoder.depth + (model.decoder.norm is not None)


@pytest.mark.parametrize("change", ["not packed", "hook", "hook of the stack's norm", "training", *OTHERS])
def test_other_stacks_are_computed_by_their_modules(change):
    config = DECODERS.get(change, PRE)
    model = make(config) if change == "not packed" else pack(make(config))
    seen = []
    watched = {"hook": model.decoder.layers[1], "hook of the stack's norm": model.decoder.norm}.get(change)
    if watched is not None:
        watched.register_forward_hook(lambda module, given, found: seen.append(found.shape))
    if change == "training":
        model.decoder.train()
    kernels = Joining()
    with torch.inference_mode():
        logits_of(model, [torch.tensor([[5], [6]])], kernels)
    assert kernels.n_norms == 0
    assert len(seen) == (watched is not None)


@pytest.mark.parametrize("kernels", [Joining, Normalizing])
def test_a_multiplier_of_residual_connections_is_not_lost(kernels):
    model, given = pack(make(replace(PRE, residual_multiplier=0.5))), [torch.tensor([[5], [6]])]
    with torch.inference_mode():
        assert torch.allclose(logits_of(model, given, kernels()), logits_of(model, given, KernelSet()))


@pytest.mark.parametrize("placements", [("pre", "post"), ("post", "pre")])
def test_layers_with_pre_norm_and_post_norm_may_follow_each_other(placements):
    model, given, kernels = pack(make(PRE)), [torch.tensor([[5], [6]])], Joining()
    for layer, placement in zip(model.decoder.layers, placements, strict=False):
        layer.self_attn_sublayer.placement = layer.ffn_sublayer.placement = placement
    with torch.inference_mode():
        assert torch.allclose(logits_of(model, given, kernels), logits_of(model, given, KernelSet()))
    assert kernels.n_norms == 2 * model.decoder.depth + 1


class Own(Layer):
    """A layer with another formula."""

    @override
    def forward(self, x, **inputs):
        return 2 * super().forward(x, **inputs)


def own_layer(model):
    model.decoder.layers[0].__class__ = Own


def replaced_layer(model):
    layer = model.decoder.layers[0]
    layer.forward = lambda x, **inputs: 2 * Layer.forward(layer, x, **inputs)


def own_norm(model):
    class Norm(type(model.decoder.norm)):
        def forward(self, x):
            return 2 * super().forward(x)

    model.decoder.norm.__class__ = Norm


def dropout_only(model):
    dropout = model.decoder.layers[0].ffn_sublayer.dropout
    dropout.p = 1.0
    dropout.train()


@pytest.mark.parametrize("change", [own_layer, replaced_layer, own_norm, dropout_only])
@pytest.mark.parametrize("kernels", [Joining, Normalizing])
def test_modules_that_compute_something_else_are_called(change, kernels):
    model, given = pack(make(PRE)), [torch.tensor([[5], [6]])]
    change(model)
    with torch.inference_mode():
        assert torch.allclose(logits_of(model, given, kernels()), logits_of(model, given, KernelSet()))


def test_hooks_of_all_modules_see_every_module():
    model, seen = pack(make(PRE)), {}
    for kernels in (KernelSet(), Joining(), Normalizing()):
        found = seen[kernels] = []
        hook = register_module_forward_hook(lambda module, given, result, found=found: found.append(type(module)))
        try:
            with torch.inference_mode():
                logits_of(model, [torch.tensor([[5], [6]])], kernels)
        finally:
            hook.remove()
    assert len({tuple(found) for found in seen.values()}) == 1


def test_layers_that_compute_norms_in_their_products_are_left_to_them():
    given = [torch.tensor([[5], [6]])]
    for config, n_norms in ((PRE, 0), (SMALL, 4)):
        kernels = Normalizing()
        with torch.inference_mode():
            logits_of(pack(make(config)), given, kernels)
        assert kernels.n_norms == n_norms


def test_a_mask_of_padding_only_is_one_kernel():
    class Masking(KernelSet):
        def can_attend_to_cache(self, like):
            return True

        def can_number_step(self, real, dtype):
            return real.is_contiguous()

        def mask_padding(self, real, dtype):
            return tuple("abcd")

    real, like = torch.ones(2, 5, dtype=torch.bool), torch.zeros(1)
    with torch.inference_mode():
        assert Mask(real=real).with_additive(1, 5, None, like, Masking()).additive[:4] == tuple("abcd")
        for other in (Mask(real=real, causal=True), Mask(real=real, window=2), Mask(real=real.T.contiguous().T)):
            assert isinstance(other.with_additive(1, 5, None, like, Masking()).additive.values, torch.Tensor)
