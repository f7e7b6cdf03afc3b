"""Errors about wrong input name the argument, its value and what was expected."""

import pytest
import torch

from glassformer import nn as blocks
from glassformer.documents import Transformer
from glassformer.models import DecoderModel, EncoderModel, build_model, preset

GPT, BERT, BART = (build_model(preset(f"tiny-{name}")).eval() for name in ("gpt2", "bert-base", "bart-base"))
PAPER = Transformer(40, 40, d_model=16, num_heads=4, num_layers=1, d_ff=8).eval()
IDS = torch.zeros(2, 5, dtype=torch.long)


@pytest.fixture(autouse=True)
def _no_work_is_done():
    """Fail if an embedding runs: the arguments must be checked before any work is done."""
    handles = [
        module.register_forward_pre_hook(lambda *_: pytest.fail("work began before the check"))
        for model in (GPT, BERT, BART, PAPER)
        for module in model.modules()
        if isinstance(module, blocks.Embeddings)
    ]
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: GPT(IDS + 40), ValueError, r"tokens holds the id 40: expected ids from 0 to 39"),
        (lambda: GPT(IDS - 1), ValueError, r"tokens holds the id -1: expected ids from 0 to 39"),
        (lambda: GPT(IDS[0]), ValueError, r"tokens has shape \(5,\): expected \(batch, length\)"),
        (lambda: GPT(IDS.float()), TypeError, r"tokens has dtype torch.float32: expected torch.int64"),
        (lambda: GPT(torch.zeros(1, 33, dtype=torch.long)), ValueError, r"tokens reaches 33 tokens.*max_len=32"),
        (lambda: GPT(IDS, torch.ones(2, 4)), ValueError, r"mask has shape \(2, 4\): expected \(2, 5\)"),
        (lambda: GPT(IDS, torch.full((2, 5), 0.5)), ValueError, r"mask holds 0.5: expected True/False or 1/0"),
        (
            lambda: GPT(IDS, torch.full((2, 5), float("-inf"))),
            ValueError,
            r"mask holds -inf: expected True/False or 1/0",
        ),
        (lambda: GPT(IDS, token_types=IDS), ValueError, "token_types were given to a model without them"),
        (lambda: BERT(IDS, token_types=IDS + 2), ValueError, "token_types holds the id 2: expected ids from 0 to 1"),
        (lambda: BERT(IDS, token_types=IDS[:, :3]), ValueError, r"token_types has shape \(2, 3\): expected \(2, 5\)"),
        (lambda: BERT(IDS, segments=IDS[:, :3]), ValueError, r"segments has shape \(2, 3\): expected \(2, 5\)"),
        (lambda: GPT(IDS, segments=IDS, cache=GPT.new_cache(2, 9)), ValueError, "together with a cache"),
        (lambda: GPT(IDS, cache=GPT.new_cache(3, 9)), ValueError, "tokens has 2 rows: expected the cache's 3"),
        (lambda: GPT(IDS, cache=GPT.new_cache(2, 4)), ValueError, "expected at most capacity=4"),
        (lambda: BART(IDS + 99, IDS), ValueError, "source holds the id 99"),
        (lambda: BART(IDS, IDS + 99), ValueError, "target holds the id 99"),
        (lambda: BART(IDS, IDS[:1]), ValueError, "target has 1 rows: expected 2, as source"),
        (lambda: BART(IDS, IDS, torch.ones(2, 4)), ValueError, r"source_mask has shape \(2, 4\): expected \(2, 5\)"),
        (
            lambda: BART(IDS, IDS, None, torch.ones(2, 4)),
            ValueError,
            r"target_mask has shape \(2, 4\): expected \(2, 5\)",
        ),
        (lambda: BART(IDS, torch.zeros(2, 33, dtype=torch.long)), ValueError, "target reaches 33 tokens"),
        (lambda: PAPER(IDS, IDS, torch.ones(2, 1, 1, 4)), ValueError, r"src_mask has shape \(2, 1, 1, 4\)"),
        (lambda: PAPER(IDS, IDS, torch.ones(2, 5)), ValueError, r"src_mask\[:, None, None, :\]"),
        (lambda: PAPER(IDS, IDS, None, torch.ones(2, 5, 5)), ValueError, r"tgt_mask has shape \(2, 5, 5\)"),
        (lambda: PAPER(IDS, IDS, None, torch.ones(2, 4, 5, 5)), ValueError, r"tgt_mask has shape \(2, 4, 5, 5\)"),
        (lambda: PAPER(IDS, IDS + 40), ValueError, "tgt holds the id 40"),
        (lambda: PAPER(IDS, IDS[:1]), ValueError, "tgt has 1 rows: expected 2, as src"),
        (lambda: BART.decode(IDS, torch.zeros(1, 4, 16)), ValueError, r"memory has shape \(1, 4, 16\): expected \(2,"),
        (lambda: BART.decode(IDS, torch.zeros(2, 4, 12)), ValueError, r"memory has shape \(2, 4, 12\).*16\)"),
        (lambda: BART.decode(IDS, IDS[:, :, None].repeat(1, 1, 16)), TypeError, "memory has dtype torch.int64"),
        (
            lambda: BART.decode(IDS, torch.zeros(2, 4, 16), torch.ones(2, 3)),
            ValueError,
            r"source_mask has shape \(2, 3\): expected \(2, 4\)",
        ),
        (lambda: GPT.new_cache(0, 4), ValueError, "batch_size=0"),
        (lambda: GPT([[1, 2]]), TypeError, "tokens is a list: expected a tensor"),
        (lambda: GPT(IDS, [[1] * 5] * 2), TypeError, "mask is a list: expected a tensor"),
        (lambda: BART.decode(IDS, None), TypeError, "memory is a NoneType: expected the encoder's output"),
        (
            lambda: BART.decode(IDS, torch.zeros(2, 4, 16), cache=BART.new_cache(2, 9, 5)),
            ValueError,
            "memory has 4 tokens: expected the cache's memory_length=5",
        ),
        (
            lambda: GPT(IDS, segments=torch.tensor([[0, 1, 0, 0, 0]] * 2)),
            ValueError,
            "segments decrease along a row",
        ),
        (lambda: GPT(IDS, segments=IDS.float()), TypeError, "segments has dtype torch.float32"),
        (lambda: build_model("gpt2"), TypeError, r"expected a ModelConfig, such as preset\('gpt2'\)"),
        (
            lambda: DecoderModel(preset("tiny-bert-base")),
            ValueError,
            "DecoderModel was given.*kind 'encoder': expected 'decoder'",
        ),
        (lambda: EncoderModel(preset("tiny-gpt2")), ValueError, "EncoderModel was given"),
    ],
)
def test_model_errors_name_the_argument_and_the_expected_value(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: blocks.MultiHeadAttention(10, 3), "n_heads=3 does not divide d_model=10"),
        (lambda: blocks.MultiHeadAttention(12, 4, n_kv_heads=3), "n_kv_heads=3 does not divide n_heads=4"),
        (lambda: blocks.MultiHeadAttention(12, 4, head_dim=0), "head_dim=0: expected a whole number"),
        (
            lambda: blocks.attend(*[torch.zeros(1, 1, 2, 4)] * 3, backend="flash"),
            "backend='flash': expected one of sdpa",
        ),
        (lambda: blocks.RelativeBias(4, n_buckets=2, bidirectional=True), "n_buckets=2, max_distance=128: expected"),
        (lambda: blocks.Alibi(0), "n_heads=0"),
        (
            lambda: BART.decoder(torch.zeros(1, 2, 16), positions=IDS[:1, :2]),
            "memory is missing: expected",
        ),
        (
            lambda: GPT.decoder(torch.zeros(1, 2, 16), positions=IDS[:1, :2], memory=torch.zeros(1, 2, 16)),
            "memory was given: expected none",
        ),
        (lambda: blocks.MultiHeadAttention(12, 0), "n_heads=0: expected a whole number"),
        (lambda: blocks.MultiHeadAttention(12, 4)(torch.zeros(2, 3, 10)), r"query has shape \(2, 3, 10\).*12\)"),
        (lambda: blocks.MultiHeadAttention(12, 4, dropout=1.5), "attention dropout=1.5"),
        (lambda: blocks.MultiHeadAttention(12, 4, backend="fast"), "backend='fast': expected one of"),
        (lambda: blocks.FeedForward(8, 8)(torch.zeros(2, 8)), r"feed-forward input has shape \(2, 8\)"),
        (lambda: blocks.FeedForward(8, 8, activation="swish"), "activation='swish': expected one of"),
        (lambda: blocks.make_norm("batch", 8, 1e-5), "norm='batch': expected"),
        (lambda: blocks.MeanStdNorm(1), "width=1: expected at least 2"),
        (lambda: blocks.Sublayer(torch.nn.Identity(), placement="mid"), "norm_placement='mid'"),
        (lambda: blocks.Mask(window=0), "mask window=0"),
        (lambda: blocks.Mask(query_segments=IDS), "query_segments and key_segments together"),
        (lambda: GPT.new_cache(2, 4).reorder(torch.tensor([0, 1, 1])), "rows has 3 entries: expected at most"),
        (lambda: GPT.new_cache(2, 4).truncate(1), "length=1: expected 0 to 0"),
        (
            lambda: GPT.decoder(
                torch.zeros(1, 2, 16),
                positions=IDS[:1, :2],
                cache=blocks.KVCache(n_layers=1, batch_size=1, capacity=4, n_kv_heads=4, head_dim=4),
            ),
            "cache is for 1 layers: expected 2",
        ),
    ],
)
def test_block_errors_name_the_argument_and_the_expected_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()
