"""A layer by fused kernels equals the layer by its modules."""

from dataclasses import replace

import pytest
import torch
from typing_extensions import override

from glassformer.kernels.kernel_set import KernelSet
from glassformer.nn import fused_layer
from glassformer.nn.positions import Rotation
from glassformer.runtime.cache_pool import CachePool
from glassformer.runtime.packed_model import pack
from glassformer.runtime.pool_runner import PoolRunner
from glassformer.runtime.recorded_steps import Recording, Shape
from glassformer.runtime.step_functions import Steps
from glassformer.runtime.step_runner import StepRunner
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
    def fuses_norms(self, x):
        return True

    @override
    def fused_linear(self, *args, **options):
        self.n_calls += 1
        return super().fused_linear(*args, **options)


class Attending(Fusing):
    """The same with an attention that counts the keys and values it has written."""

    def __init__(self):
        super().__init__()
        self.n_written = self.n_rotated = 0
        self.rotates = False

    @override
    def can_attend_to_cache(self, like):
        return True

    @override
    def can_attend(self, q, k, v, added):
        return True

    @override
    def attend(self, q, k, v, added, key_end, scale):
        k, v = (store.repeat_interleave(q.shape[1] // store.shape[1], 1) for store in (k, v))
        return ((q * scale) @ k.mT + added).softmax(-1) @ v

    @override
    def can_write_rows(self, k, v, keys):
        return True

    @override
    def write_rows(self, k, v, keys, values, positions):
        rows = torch.arange(len(k)), slice(None), positions
        keys[rows], values[rows] = k[:, :, 0], v[:, :, 0]

    @override
    def can_rotate_within(self, keys, angles):
        return self.rotates

    @override
    def rotate(self, x, cos, sin):
        return Rotation(cos, sin).rotate(x)

    @override
    def write_and_attend(self, q, new, added, key_end, scale):
        self.n_written += new.k.shape[0]
        self.n_rotated += new.angles is not None
        return super().write_and_attend(q, new, added, key_end, scale)


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


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("name", ["learned positions", "window", "gated"])
def test_a_kernel_writes_the_new_token_and_attends_to_it(name, rotates):
    model, kernels = pack(make(CONFIGS[name])), Attending()
    kernels.rotates = rotates
    first, *tokens = torch.randint(3, 23, (2, 10)).split([7, 1, 1, 1], 1)
    with torch.inference_mode():
        cache = Recording(model, Shape(2, 20), Steps(model, compile=False), kernels).cache
        plain, fixed = StepRunner(model, model.new_cache(2, 20)), StepRunner(model, cache)
        assert torch.allclose(plain.step(first), fixed.step(first))
        cache.fix()
        for token in tokens:
            assert torch.allclose(plain.step(token), fixed.step(token), atol=1e-6)
    assert kernels.n_written == len(tokens) * model.config.n_decoder_layers * 2
    is_rotated = rotates and model.config.positions == "rotary"
    assert kernels.n_rotated == is_rotated * len(tokens) * model.config.n_decoder_layers


def test_rows_of_a_pool_write_and_attend_at_their_own_positions():
    model, kernels = pack(make(CONFIGS["gated"])), Attending()
    texts, found = [[5, 6, 7, 8, 9], [10, 4]], []
    with torch.inference_mode():
        for used in (KernelSet(), kernels):
            runner = PoolRunner(model, CachePool(model, max_rows=2, max_tokens=40, kernels=used), is_recorded=False)
            rows = runner.pool.take(2)
            runner.read(rows, texts)
            for row in rows:
                row.state = "running"
            found.append([runner.step(torch.tensor([[token]] * 2)).clone() for token in (4, 5, 6)])
    for right, other in zip(*found, strict=True):
        torch.testing.assert_close(other, right, atol=1e-5, rtol=1e-5)
    assert kernels.n_written == 3 * model.config.n_decoder_layers * 2


@pytest.mark.parametrize("change", ["not packed", "hook", "training", *OTHERS])
def test_other_layers_are_computed_by_their_modules(change):
    config = DECODERS.get(change, PRE)
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
    assert fused_layer.norm_weights(torch.nn.LayerNorm(16)) is not None
    assert fused_layer.norm_weights(torch.nn.LayerNorm(16, elementwise_affine=False)) is None
