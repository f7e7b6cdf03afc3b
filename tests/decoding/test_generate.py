"""Cached, batched writing against the oracle, which computes everything anew for one sentence at a time."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer import reference
from glassformer.decoding import GenerationConfig, generate, score_pairs, stream
from glassformer.decoding.beam import BeamSearch, stay_in_place
from glassformer.decoding.generate import Written
from glassformer.kernels.kernel_set import stable_topk
from glassformer.models import build_model, preset
from glassformer.nn import capture_attention
from oracle import random_model, twin
from recording import assert_same

END, BEGIN = 0, 1
TRANSLATORS = ["tiny-transformer-base", "tiny-t5-small", "tiny-bart-base", "tiny-marian"]
WRITERS = ["tiny-gpt2", "tiny-llama"]


def random_inputs(count, *, vocab_size=40, longest=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(2, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def prompt_options(model):
    return {"begin": BEGIN} if model.kind == "encoder_decoder" else {}


def next_log_probs(model, tokens):
    """The oracle's, and what it begins with."""
    oracle = twin(model)
    if model.kind == "encoder_decoder":
        return reference.translates(oracle, torch.tensor(tokens).numpy()), [BEGIN]
    return reference.continues(oracle), tokens


def without_end(tokens):
    return [token for token in tokens if token != END]


@pytest.mark.parametrize("name", TRANSLATORS + WRITERS)
def test_greedy_equals_the_oracles_with_its_log_probabilities(name):
    model = random_model(preset(name))
    inputs = random_inputs(5)
    config = GenerationConfig(max_new_tokens=9)
    found = generate(model, inputs, config, end=END, with_log_probs=True, **prompt_options(model))
    for tokens, (written,) in zip(inputs, found, strict=True):
        expected = reference.greedy(*next_log_probs(model, tokens), END, 9)
        assert written.tokens == without_end(expected.tokens)
        assert sum(written.log_probs) == pytest.approx(expected.score, abs=1e-8)
        assert written.reason == ("end" if END in expected.tokens else "length")


@pytest.mark.parametrize("name", [*TRANSLATORS[:3], *WRITERS])
@pytest.mark.parametrize(("width", "length_penalty"), [(2, 0.0), (3, 1.0), (4, 0.6), (5, -0.5)])
def test_batched_beams_equal_the_oracles_one_by_one(name, width, length_penalty):
    model = random_model(preset(name, vocab_size=9))
    inputs = random_inputs(4, vocab_size=9)
    config = GenerationConfig(
        max_new_tokens=7, num_beams=width, num_return_sequences=width, length_penalty=length_penalty
    )
    found = generate(model, inputs, config, end=END, **prompt_options(model))
    for tokens, hypotheses in zip(inputs, found, strict=True):
        options = {"width": width, "length_penalty": length_penalty}
        expected = reference.beam_search(*next_log_probs(model, tokens), END, 7, **options)
        expected = [Written(without_end(h.tokens), score=h.score) for h in expected]
        assert_same([expected], [hypotheses], tolerance=1e-8)


def test_what_was_paid_decides_the_choice_of_a_group():
    config = GenerationConfig(max_new_tokens=3, num_beams=2, num_beam_groups=2, diversity_penalty=2.5)
    search = BeamSearch(None, torch.tensor([[0]]), None, config, end=4, limits=torch.tensor([3]), room=3)
    logs = torch.tensor([[0.05, 0.80, 0.12, 0.02, 0.01]]).log()
    step = search.advance(logs.expand(2, -1), 0)
    assert step.tokens.tolist() == [[1, 2]]  # less 2.5 the best is worse than the second
    torch.testing.assert_close(step.scores, logs[:, [1, 2]])  # what was paid is no part of the score


def tied_language(seed):
    """Log-probabilities of few different values, exact in any floating-point format: totals are often equal."""

    def next_log_probs(prefixes):
        rows = [random.Random(f"{seed} {prefix}") for prefix in prefixes.tolist()]
        return np.array([[-rng.randint(1, 3) / 2 for _ in range(TIED_VOCABULARY)] for rng in rows])

    return next_log_probs


TIED_VOCABULARY = 7


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    width=st.integers(1, 5),
    max_new=st.integers(1, 6),
    length_penalty=st.sampled_from([0.0, 1.0]),
)
def test_ties_have_one_rule(seed, width, max_new, length_penalty):
    """The search and the oracle take the same of equal ones, wherever the search has put its beams."""
    language = tied_language(seed)
    config = GenerationConfig(
        max_new_tokens=max_new, num_beams=width, num_return_sequences=width, length_penalty=length_penalty
    )
    search = BeamSearch(None, torch.tensor([[0]]), None, config, END, limits=torch.tensor([max_new]), room=max_new)
    for length in range(max_new):
        logs = torch.tensor(language(search.tokens[0, :, :length].numpy()), dtype=torch.float32)
        search._extend_by(*stable_topk(logs, min(2 * width, TIED_VOCABULARY)))
        if search.are_decided().all():
            break
    expected = reference.beam_search(language, [], END, max_new, width=width, length_penalty=length_penalty)
    (found,) = search.results(1)
    assert [h.tokens for h in found] == [without_end(h.tokens) for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], rel=1e-6)


def test_of_equal_wishes_a_group_takes_the_lower_token():
    config = GenerationConfig(max_new_tokens=3, num_beams=4, num_beam_groups=2, diversity_penalty=0.5)
    search = BeamSearch(None, torch.tensor([[0]]), None, config, end=6, limits=torch.tensor([3]), room=3)
    step = search.advance(torch.zeros(4, 7), 0)
    assert step.tokens.tolist() == [[0, 1, 2, 3]], "those that the first group took cost the second more"


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 4), width=st.integers(1, 80), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_of_equal_scores_the_lower_token_comes_first(rows, width, share, seed):
    torch.manual_seed(seed)
    scores = torch.randint(-4, 4, (rows, width)).float()
    scores[torch.rand(rows, width) > 0.9] = -torch.inf
    count = 1 + int(share * (width - 1))
    values, tokens = stable_topk(scores, count)
    ordered = scores.sort(descending=True, stable=True)
    assert torch.equal(values, ordered.values[:, :count])
    is_possible = values > -torch.inf
    assert torch.equal(tokens[is_possible], ordered.indices[:, :count][is_possible])


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 6).flatmap(lambda k: st.lists(st.lists(st.integers(0, k - 1), min_size=k, max_size=k), min_size=1))
)
def test_a_child_of_each_parent_stays_in_its_place(parents):
    parents = torch.tensor(parents)
    order = stay_in_place(parents)
    everybody = torch.arange(parents.shape[1]).expand_as(parents)
    assert torch.equal(order.sort(1).values, everybody)
    found = parents.gather(1, order)
    has_children = (parents[:, None] == everybody[:, :, None]).any(2)
    assert torch.equal(found == everybody, has_children)


@pytest.mark.parametrize("name", ["tiny-marian", "tiny-llama"])
def test_a_beam_as_wide_as_all_sentences_finds_the_best_there_is(name):
    """Every sentence of a vocabulary of four, up to four tokens: 3^0 + 3^1 + 3^2 + 3^3 endings and 3^4 cut off."""
    model = random_model(preset(name, vocab_size=4))
    tokens = [2, 3, 2]
    next_logs, start = next_log_probs(model, tokens)
    sentences, alive = [], [([], 0.0)]
    for length in range(1, 5):
        logs = next_logs(torch.tensor([start + text for text, _ in alive]).numpy())
        grown = [
            ([*text, token], total + row[token])
            for (text, total), row in zip(alive, logs, strict=True)
            for token in range(4)
        ]
        ended = [(text, total) for text, total in grown if text[-1] == END or length == 4]
        sentences += [(total / len(text), text) for text, total in ended]
        alive = [(text, total) for text, total in grown if text[-1] != END]
    best = sorted(sentences, reverse=True)[:5]
    config = GenerationConfig(max_new_tokens=4, num_beams=81, num_return_sequences=5)
    (found,) = generate(model, [tokens], config, end=END, **prompt_options(model))
    assert_same([[Written(without_end(text), score=score) for score, text in best]], [found], tolerance=1e-8)


CONFIGS = [
    GenerationConfig(max_new_tokens=8),
    GenerationConfig(max_new_tokens=8, num_beams=3, num_return_sequences=2),
    GenerationConfig(max_new_tokens=8, num_beams=4, num_beam_groups=2, diversity_penalty=0.5, num_return_sequences=4),
    GenerationConfig(max_new_tokens=8, num_beams=3, early_stopping=True),
    GenerationConfig(max_new_tokens=8, num_beams=3, early_stopping=False),
    GenerationConfig(max_new_tokens=8, do_sample=True, seed=5, num_return_sequences=3, temperature=1.5),
    GenerationConfig(max_new_tokens=8, do_sample=True, top_k=5, top_p=0.9, repetition_penalty=1.3),
    GenerationConfig(max_new_tokens=8, num_beams=2, no_repeat_ngram_size=2, min_new_tokens=4, suppress_tokens=(3,)),
    GenerationConfig(max_new_tokens=8, max_source_ratio=0.0, prefix=(7, 8), presence_penalty=0.4),
]


@pytest.mark.parametrize("name", ["tiny-marian", "tiny-gpt2", "tiny-llama", "tiny-t5-small"])
@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_any_batch_equals_one_by_one(name, config):
    model = random_model(preset(name))
    inputs = random_inputs(6)
    options = {"end": END, **prompt_options(model)}
    together = generate(model, inputs, config, **options)
    for tokens, found in zip(inputs, together, strict=True):
        alone = generate(model, [tokens], config, **options)
        assert_same(alone, [found])
        assert len(found) == config.num_return_sequences
    assert_same(together, generate(model, inputs, config, max_batch_tokens=7, **options))


@pytest.mark.parametrize("name", ["tiny-marian", "tiny-llama"])
@pytest.mark.parametrize("config", [CONFIGS[0], GenerationConfig(max_new_tokens=8, do_sample=True, seed=3)], ids=[0, 1])
def test_streaming_equals_whole(name, config):
    model = random_model(preset(name))
    for tokens in random_inputs(4):
        options = {"end": END, **prompt_options(model)}
        assert (
            list(stream(model, tokens, config, **options)) == generate(model, [tokens], config, **options)[0][0].tokens
        )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**64), top_k=st.integers(0, 4), temperature=st.floats(0.2, 3.0))
def test_a_seed_repeats_a_sample_and_its_number_tells_samples_apart(seed, top_k, temperature):
    torch.manual_seed(0)
    model = random_model(preset("tiny-llama"))
    config = GenerationConfig(
        max_new_tokens=6, do_sample=True, seed=seed, top_k=top_k, temperature=temperature, num_return_sequences=3
    )
    first = generate(model, [[5, 6]], config, end=END)
    assert first == generate(model, [[5, 6]], config, end=END)
    if top_k == 1:
        greedy = generate(model, [[5, 6]], GenerationConfig(max_new_tokens=6), end=END)
        assert all(written.tokens == greedy[0][0].tokens for written in first[0])


def test_diverse_groups_differ_where_one_group_would_not():
    torch.manual_seed(1)
    model = random_model(preset("tiny-marian"))
    config = GenerationConfig(
        max_new_tokens=6, num_beams=3, num_beam_groups=3, diversity_penalty=100.0, num_return_sequences=3
    )
    (found,) = generate(model, [[5, 6, 7]], config, begin=BEGIN, end=END)
    firsts = [(written.tokens or [END])[0] for written in found]
    assert len(set(firsts)) == 3


def test_a_coverage_penalty_takes_what_was_hardly_looked_at():
    torch.manual_seed(2)
    model = random_model(preset("tiny-marian"))
    sources = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]  # more to look at than there are looks
    config = GenerationConfig(max_new_tokens=3, num_beams=4, num_return_sequences=3, coverage_penalty=0.3)
    for source, found in zip(sources, generate(model, sources, config, begin=BEGIN, end=END), strict=True):
        for written in found:
            # Its own log-probability, and where it looked, from one forward over the whole sentence.
            scores = score_pairs(model, [source], [written.tokens], begin=BEGIN, end=END)[0]
            length = len(written.tokens) if len(written.tokens) == 3 else len(written.tokens) + 1
            with capture_attention(model, layers=[-1], kinds=["cross_attn"]) as captured:
                model(torch.tensor([source]), torch.tensor([[BEGIN, *written.tokens][:length]]))
            looked = next(iter(captured.values()))[0].mean(0).sum(0)  # (S,)
            penalty = looked.clamp_max(1.0).log().sum().item()
            assert penalty < -1e-3
            assert written.score == pytest.approx(sum(scores[:length]) / length + 0.3 * penalty, abs=1e-5)


def test_the_models_limit_ends_a_text_whatever_the_padding():
    model = random_model(preset("tiny-gpt2", max_len=10))
    config = GenerationConfig(max_new_tokens=50, suppress_tokens=(END,))
    found = generate(model, [[5, 6, 7, 8], [9]], config, end=END)
    assert [len(written[0].tokens) for written in found] == [7, 10]
    config = GenerationConfig(max_new_tokens=50, num_beams=2)
    together = generate(model, [[5, 6, 7, 8], [9]], config, end=END)
    assert_same([generate(model, [tokens], config, end=END)[0] for tokens in ([5, 6, 7, 8], [9])], together)


EVERYTHING = tuple(range(preset("tiny-gpt2").vocab_size))


def test_what_cannot_be_written_is_told():
    gpt, marian = build_model(preset("tiny-gpt2", max_len=8)), build_model(preset("tiny-marian"))
    for make, message in (
        (lambda: generate(gpt, [[]], end=END), "input 0 is empty"),
        (lambda: generate(gpt, [[5] * 9], end=END), "input 0 has 9 tokens: expected at most max_len=8"),
        (lambda: generate(gpt, [[5]], end=END, begin=1), "begin=1: expected none"),
        (lambda: generate(marian, [[5]], end=END), "begin=None: expected the token"),
        (lambda: generate(gpt, [[5]], GenerationConfig(suppress_tokens=(10**6,)), end=END), "names token 1000000"),
        (
            lambda: generate(
                gpt, [[5]], GenerationConfig(suppress_tokens=tuple(range(gpt.config.vocab_size))), end=END
            ),
            "forbid every token",
        ),
        (lambda: list(stream(gpt, [5], GenerationConfig(num_beams=2), end=END)), "only one text can be streamed"),
        (
            lambda: generate(build_model(preset("tiny-gpt2").with_head("none")), [[5]], end=END),
            "head='none': expected 'language_model'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    assert generate(gpt, [], end=END) == []


def test_between_two_tokens_of_a_stream_the_caller_is_left_alone():
    model = random_model(preset("tiny-llama")).train()
    tokens = stream(model, [5, 6], GenerationConfig(max_new_tokens=4, suppress_tokens=(END,)), end=END)
    next(tokens)
    assert not torch.is_inference_mode_enabled()
    assert model.training
    assert len(list(tokens)) == 3


SEARCHES = [GenerationConfig(), GenerationConfig(num_beams=3), GenerationConfig(do_sample=True)]


@pytest.mark.parametrize("config", SEARCHES, ids=["greedy", "beam", "sample"])
def test_nan_scores_are_an_error_and_not_a_text(config):
    model = build_model(preset("tiny-gpt2"))
    with torch.no_grad():
        model.decoder.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="NaN"):
        generate(model, [[5, 6]], config, end=END)
