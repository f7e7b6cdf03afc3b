"""Attention masks: which keys each query may attend to."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer.models import DecoderModel, EncoderModel, ModelConfig
from glassformer.nn import Mask, as_mask, masks
from glassformer.nn.masks import find_key_end


def test_causal_queries_are_aligned_with_the_last_keys():
    seen = Mask(causal=True).dense(2, 5, torch.device("cpu"))[0, 0]
    assert seen.tolist() == [[True, True, True, True, False], [True] * 5]


def test_masks_of_another_dtype_are_refused():
    with pytest.raises(TypeError, match=r"mask real has dtype torch.int64: expected torch.bool"):
        Mask(real=torch.ones(2, 3, dtype=torch.long))


CPU = torch.device("cpu")


def test_a_mask_without_rules_needs_no_tensor():
    assert Mask().dense(3, 3, CPU) is None
    assert Mask(causal=True).dense(1, 5, CPU) is None, "a single query may attend to all keys"


def test_all_rules_must_allow_a_key():
    real = torch.tensor([[True, True, False, True]])
    seen = Mask(causal=True, window=2, real=real).dense(4, 4, CPU)[0, 0]
    assert seen.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]


def test_packed_documents_do_not_attend_to_each_other():
    segments = torch.tensor([[0, 0, 1]])
    seen = Mask(query_segments=segments, key_segments=segments).dense(3, 3, CPU)[0, 0]
    assert seen.int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_the_additive_form_is_the_bias_or_minus_infinity():
    bias = torch.tensor([[[[0.5, 0.25], [1.0, 2.0]]]])
    mask = Mask(causal=True).with_additive(2, 2, bias, torch.zeros(1))
    assert mask.additive.values[0, 0].tolist() == [[0.5, -torch.inf], [1.0, 2.0]]
    assert Mask(causal=True).with_additive(2, 2, None, torch.zeros(1)).additive is None, "kernels take it as a flag"


def test_numbers_become_a_mask_only_if_they_are_0_or_1():
    assert as_mask("mask", torch.tensor([1.0, 0.0])).tolist() == [True, False]
    with pytest.raises(ValueError, match="mask holds -inf: expected True/False or 1/0"):
        as_mask("mask", torch.tensor([0.0, -torch.inf]))


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.size = max(self.size, value.untyped_storage().nbytes() // value.element_size())
        return result


SMALL = ModelConfig(
    vocab_size=11, n_decoder_layers=2, d_model=8, n_heads=2, n_kv_heads=1, d_ff=8, positions="rotary", max_len=None
)


def both_backends(config):
    """Return the same random model with fused attention and with the dense formula."""
    torch.manual_seed(0)
    fused, dense = DecoderModel(config).double().eval(), DecoderModel(config, backend="math").double().eval()
    dense.load_state_dict(fused.state_dict())
    return fused, dense


def blocks_used(monkeypatch):
    """Make blocks of 4 queries, and return a list that gets an entry for each block."""
    monkeypatch.setattr(masks, "QUERY_BLOCK", 4)
    used, block = [], Mask.block
    monkeypatch.setattr(Mask, "block", lambda *args: used.append(1) or block(*args))
    return used


@torch.no_grad()
@pytest.mark.parametrize("padding", ["none", "left", "right", "anywhere"])
def test_attention_by_blocks_equals_the_dense_formula(padding, monkeypatch):
    used = blocks_used(monkeypatch)
    chance = random.Random(padding)
    for _ in range(8):
        length, window, batch = chance.randint(1, 40), chance.randint(1, 12), chance.randint(1, 3)
        fused, dense = both_backends(replace(SMALL, sliding_window=window))
        tokens, real = torch.randint(0, 11, (batch, length)), torch.ones(batch, length, dtype=torch.bool)
        for row in range(batch):
            n_padding = chance.randint(0, length - 1)
            if padding == "left":
                real[row, :n_padding] = False
            elif padding == "right":
                real[row, length - n_padding :] = False
            elif padding == "anywhere":
                real[row] = torch.rand(length) < 0.7
        mask = None if padding == "none" else real
        cut = chance.randint(0, length - 1)  # the first tokens are in the cache
        cache = fused.new_cache(batch, length)
        parts = [slice(0, cut), slice(cut, length)] if cut else [slice(0, length)]
        found = [fused.decode(tokens[:, p], None if mask is None else mask[:, p], cache=cache) for p in parts]
        expected = dense.decode(tokens, mask)
        torch.testing.assert_close(torch.cat(found, 1)[real], expected[real], atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(fused.decode(tokens, mask), expected, atol=1e-10, rtol=1e-10)
    assert bool(used) == (padding in ("none", "left"))  # other padding takes the dense mask


@torch.no_grad()
def test_packed_documents_with_a_window_are_attended_by_blocks(monkeypatch):
    used = blocks_used(monkeypatch)
    fused, dense = both_backends(replace(SMALL, sliding_window=5))
    tokens, segments = torch.randint(0, 11, (2, 30)), torch.tensor([[0] * 3 + [1] * 20 + [2] * 7, [0] * 30])
    found, expected = fused.decode(tokens, segments=segments), dense.decode(tokens, segments=segments)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    assert used


@torch.no_grad()
def test_a_bidirectional_window_is_attended_by_blocks(monkeypatch):
    used = blocks_used(monkeypatch)
    config = replace(SMALL, n_decoder_layers=0, n_encoder_layers=2, head="none", sliding_window=3)
    torch.manual_seed(0)
    fused, dense = EncoderModel(config).double().eval(), EncoderModel(config, backend="math").double().eval()
    dense.load_state_dict(fused.state_dict())
    tokens = torch.randint(0, 11, (2, 23))
    torch.testing.assert_close(fused(tokens), dense(tokens), atol=1e-10, rtol=1e-10)
    assert used


@torch.no_grad()
def test_the_largest_tensor_of_a_window_grows_with_the_length_only(monkeypatch):
    monkeypatch.setattr(masks, "QUERY_BLOCK", 32)
    sizes = []
    for length in (256, 512):
        model = DecoderModel(replace(SMALL, sliding_window=16)).eval()
        with LargestTensor() as largest:
            model.decode(torch.zeros(1, length, dtype=torch.long))
        sizes.append(largest.size)
    assert sizes[1] <= 2 * sizes[0]
    assert sizes[1] < 512 * 64


@pytest.mark.parametrize("is_training", [False, True])
def test_a_window_that_holds_the_prompt_builds_no_mask(is_training, monkeypatch):
    def no_mask(*args):
        raise AssertionError("a mask was built")

    monkeypatch.setattr(Mask, "dense", no_mask)
    model = DecoderModel(replace(SMALL, sliding_window=9)).train(is_training)
    model.decode(torch.zeros(2, 9, dtype=torch.long))
    with pytest.raises(AssertionError, match="a mask was built"):
        model.decode(torch.zeros(2, 10, dtype=torch.long))


def test_gradients_with_a_window_are_those_of_the_dense_formula(monkeypatch):
    """While gradients are recorded, the mask is dense."""
    used = blocks_used(monkeypatch)
    fused, dense = both_backends(replace(SMALL, sliding_window=5))
    tokens = torch.randint(0, 11, (2, 30))
    for model in (fused, dense):
        model.decode(tokens).square().sum().backward()
    torch.testing.assert_close(fused.embeddings.tokens.weight.grad, dense.embeddings.tokens.weight.grad)
    assert not used


def test_the_key_end_is_one_past_the_last_key_that_any_query_sees():
    allowed = torch.zeros(3, 2, 2, 5, dtype=torch.bool)
    allowed[0, 1, 0, 2] = allowed[0, 0, 1, 0] = True
    allowed[1, :, :, 4] = True
    assert find_key_end(allowed).tolist() == [3, 5, 0]
    assert find_key_end(allowed[:, :1, :1]).tolist() == [0, 5, 0]


@pytest.mark.parametrize("mask", [Mask(causal=True), Mask(window=2), Mask(causal=True, window=3)])
@pytest.mark.parametrize("n_keys", [6, 9])
def test_the_mask_of_one_query_is_its_row_of_the_whole_mask(mask, n_keys):
    wanted, whole = torch.tensor([2, 5, 0]), mask.dense(6, n_keys, torch.device("cpu"))
    found = mask.at(wanted, 6, n_keys).dense(1, n_keys, torch.device("cpu"))
    assert torch.equal(found, whole.expand(3, 1, 6, n_keys)[torch.arange(3), :, wanted][:, :, None])
