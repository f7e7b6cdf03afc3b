"""Small models whose texts end after different numbers of tokens, for tests of recorded steps."""

from dataclasses import replace

import pytest
import torch

from glassformer.decoding import GenerationConfig
from glassformer.decoding.generate import GeneratedText
from glassformer.models import DecoderModel, EncoderDecoderModel, ModelConfig
from glassformer.runtime.choose_runner import ExpectedWork, choose_execution

END, BEGIN = 2, 1
SMALL = ModelConfig(
    vocab_size=23, n_decoder_layers=2, d_model=16, n_heads=4, d_ff=24, head="language_model", max_len=40
)
DECODERS = {
    "learned positions": replace(SMALL, positions="learned"),
    "rotary, grouped": replace(SMALL, positions="rotary", n_kv_heads=2),
    "alibi": replace(SMALL, positions="alibi"),
    "relative": replace(SMALL, positions="relative"),
    "window": replace(SMALL, positions="learned", sliding_window=3),
    "parallel": replace(SMALL, positions="rotary", norm_placement="pre", parallel_ffn="one_norm", norm_bias=False),
    "experts": replace(
        SMALL, positions="rotary", gated=True, n_experts=4, shared_expert_d_ff=8, expert_d_ff=12, dense_layers=(0,)
    ),
    "sandwich, capped": replace(
        SMALL,
        positions="rotary",
        norm_placement="sandwich",
        norm="offset_rms",
        attention_softcap=3.0,
        output_softcap=4.0,
        sliding_window=3,
        global_layers=(1,),
        local_rope_theta=50.0,
    ),
}
FORGETFUL = replace(SMALL, positions="rotary", sliding_window=3)
"""The next token depends on the last few tokens only, so that different texts may have the same probability."""
PAIR = replace(SMALL, n_encoder_layers=1)
SEARCHES = {
    "greedy": GenerationConfig(max_new_tokens=9),
    "samples": GenerationConfig(max_new_tokens=9, do_sample=True, num_return_sequences=3, seed=5),
    "rules": GenerationConfig(max_new_tokens=9, repetition_penalty=1.5, min_new_tokens=3),
    "beam": GenerationConfig(max_new_tokens=9, num_beams=3, num_return_sequences=2),
    "groups": GenerationConfig(max_new_tokens=9, num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
}


def recordings_of(model):
    """The recordings that a plain request for this model uses, or None."""
    return choose_execution(model, ExpectedWork(rows=1, capacity=1)).recordings


def make(config: ModelConfig) -> DecoderModel | EncoderDecoderModel:
    torch.manual_seed(0)
    kind = EncoderDecoderModel if config.n_encoder_layers else DecoderModel
    model = kind(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.6)  # so that texts end at different steps
    return model


def assert_same(expected, found, tolerance=1e-9):
    """Assert that two ways to generate gave the same texts and scores. Texts may differ where their scores are tied."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_one_or_tied(a, b, tolerance)


def assert_one_or_tied(a, b, tolerance):
    assert (a.score is None) == (b.score is None)
    assert (a.log_probs is None) == (b.log_probs is None)
    if a.score is not None:
        assert a.score == pytest.approx(b.score, abs=tolerance), (a, b)
    if a.tokens == b.tokens:
        if a.log_probs is not None:
            assert a.log_probs == pytest.approx(b.log_probs, abs=tolerance)
        return
    if a.score is None:  # greedy: equal up to the first difference, where both tokens were equally likely
        assert a.log_probs is not None, f"{a.tokens} and {b.tokens}"
        apart = next((n for n, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y), None)
        apart = min(len(a.tokens), len(b.tokens)) if apart is None else apart
        together = slice(apart + 1)
        assert a.log_probs[together] == pytest.approx(b.log_probs[together], abs=tolerance), (a, b)


def written_by_hf(model, found, start, end):
    """Return the texts of HF's `generate` after `start` tokens as `GeneratedText`.

    Scores are after the rules. Log-probabilities are before them if `found` has logits.
    """
    logits = found.scores if found.get("logits") is None else found.logits
    texts = []
    for row, tokens in enumerate(found.sequences[:, start:].tolist()):
        length = tokens.index(end) if end in tokens else len(tokens)
        if found.get("sequences_scores") is not None:
            texts.append(GeneratedText(tokens[:length], score=found.sequences_scores[row].item()))
        else:
            logs = model.compute_transition_scores(found.sequences, logits, normalize_logits=True)[row]
            texts.append(GeneratedText(tokens[:length], log_probs=logs[: length + 1].tolist()))
    return texts
