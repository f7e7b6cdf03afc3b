"""A layer by fused kernels equals the layer by its modules."""

from dataclasses import replace

import pytest
import torch
from typing_extensions import override

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn import fused_layer
from glassformer.runtime.packed_model import pack
from recording import DECODERS, SMALL, make

PRE = replace(SMALL, norm_placement="pre")
GATED = replace(PRE, positions="rotary", n_kv_heads=2, norm="rms", gated=True, activation="silu")
OTHERS = ("parallel", "sandwich, capped")
CONFIGS = {name: replace(config, norm_placement="pre") for name, config in DECODERS.items() if name not in OTHERS}
CONFIGS |= {"gated": GATED, "norms of queries and keys": replace(GATED, qk_norm=True)}


class Fusing(KernelSet):
    """Plain kernels that say that they are fused, and count their calls."""

    def __init__(self):
        self.n_calls = 0

    @override
    def can_fuse_linear(self, x):
        return not torch.is_grad_enabled() and x.shape[0] * x.shape[1] <= 8

    @override
    def fused_linear(self, *args, **options):
        self.n_calls += 1
        return super().fused_linear(*args, **options)


def logits_of(model, parts, kernels):
    cache = model.new_cache(2, 20)
    cache.kernels = kernels
    return torch.cat([model(part, cache=cache) for part in parts], 1)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_fused_layer_computes_what_the_modules_compute(config):
    model = pack(make(config))
    parts = torch.randint(3, 23, (2, 11)).split([8, 1, 2], 1)  # the first part has too many tokens for the kernels
    kernels = Fusing()
    with torch.inference_mode():
        assert torch.allclose(logits_of(model, parts, kernels), logits_of(model, parts, KernelSet()))
    n_fused = len(config.dense_layers) if config.n_experts else config.n_decoder_layers
    assert kernels.n_calls == 2 * 4 * n_fused


@pytest.mark.parametrize("change", ["not packed", "post-norm", "hook", "training", *OTHERS])
def test_other_layers_are_computed_by_their_modules(change):
    config = {**DECODERS, "post-norm": SMALL}.get(change, PRE)
    model = make(config) if change == "not packed" else pack(make(config))
    seen = []
    if change == "hook":
        model.decoder.layers[0].ffn.register_forward_hook(lambda module, given, found: seen.append(found.shape))
    if change == "training":
        model.decoder.train()
    kernels = Fusing()
    with torch.inference_mode():
        logits_of(model, [torch.tensor([[5], [6]])], kernels)
    assert kernels.n_calls == (4 if change == "hook" else 0)  # the second layer has no hook
    assert len(seen) == (change == "hook")


def test_a_norm_without_weights_is_not_fused():
    assert fused_layer._norm_of(torch.nn.LayerNorm(16)) is not None
    assert fused_layer._norm_of(torch.nn.LayerNorm(16, elementwise_affine=False)) is None
