"""`generate` and `stream` against the NumPy oracle, which uses no cache and one sentence at a time."""

import pytest
import torch

from decoding.search_cases import (
    END,
    TRANSLATORS,
    WRITERS,
    next_log_probs,
    prompt_options,
    random_inputs,
    without_end,
)
from glassformer import reference
from glassformer.decoding import GenerationConfig, generate, record_steps, stream
from glassformer.models import build_model, preset
from glassformer.runtime.recorded_steps import RecordedStepRunner
from glassformer.runtime.step_runner import StepRunner
from oracle import random_model
from recording import DECODERS, SEARCHES, assert_same
from recording import make as make_decoder


@pytest.mark.parametrize("name", TRANSLATORS + WRITERS)
def test_greedy_texts_and_log_probabilities_equal_the_oracles(name):
    model = random_model(preset(name))
    inputs = random_inputs(5)
    config = GenerationConfig(max_new_tokens=9)
    found = generate(model, inputs, config, end=END, with_log_probs=True, **prompt_options(model))
    for tokens, (written,) in zip(inputs, found, strict=True):
        expected = reference.greedy(*next_log_probs(model, tokens), END, 9)
        assert written.tokens == without_end(expected.tokens)
        assert sum(written.log_probs) == pytest.approx(expected.score, abs=1e-8)
        assert written.reason == ("end" if END in expected.tokens else "length")


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


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(
            name, number, marks=[] if name in ("tiny-marian", "tiny-llama") or number < 2 else pytest.mark.full
        )
        for name in ("tiny-marian", "tiny-gpt2", "tiny-llama", "tiny-t5-small")
        for number in range(len(CONFIGS))
    ],
)
def test_batched_texts_equal_the_texts_of_single_inputs(name, number, count):
    model, config = random_model(preset(name)), CONFIGS[number]
    inputs = random_inputs(count(4, 6))
    options = {"end": END, **prompt_options(model)}
    together = generate(model, inputs, config, **options)
    for tokens, found in zip(inputs, together, strict=True):
        alone = generate(model, [tokens], config, **options)
        assert_same(alone, [found])
        assert len(found) == config.num_return_sequences
    assert_same(together, generate(model, inputs, config, batch_tokens=7, **options))


@pytest.mark.parametrize("name", ["tiny-marian", "tiny-llama"])
@pytest.mark.parametrize("config", [CONFIGS[0], GenerationConfig(max_new_tokens=8, do_sample=True, seed=3)], ids=[0, 1])
def test_streamed_tokens_equal_generated_tokens(name, config):
    model = random_model(preset(name))
    for tokens in random_inputs(4):
        options = {"end": END, **prompt_options(model)}
        assert (
            list(stream(model, tokens, config, **options)) == generate(model, [tokens], config, **options)[0][0].tokens
        )


def prefill_each_copy(runner, tokens, mask=None, *, copies=1):
    """Read the prompt once per beam or sample, which `StepRunner.prefill` avoids."""
    mask = None if mask is None else mask.repeat_interleave(copies, 0)
    return runner.step(tokens.repeat_interleave(copies, 0), mask)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_texts_equal_those_of_a_prompt_that_every_copy_reads(name, recorded, monkeypatch):
    """In float64, up to rounding: a matrix product of more rows may add its terms in another order."""
    model = make_decoder(DECODERS[name])
    rows_read = []
    if recorded:
        record_steps(model)
    else:  # a hook makes steps plain
        model.embeddings.register_forward_hook(lambda module, args, output: rows_read.append(args[0].shape))
    inputs = random_inputs(5, vocab_size=22, longest=9)
    for search in ("samples", "beam"):
        rows_read.clear()
        found = generate(model, inputs, SEARCHES[search], end=2, with_log_probs=True)
        assert recorded or rows_read[0] == (5, max(map(len, inputs)))
        with monkeypatch.context() as patch:
            for runner in (StepRunner, RecordedStepRunner):
                patch.setattr(runner, "prefill", prefill_each_copy)
            expected = generate(model, inputs, SEARCHES[search], end=2, with_log_probs=True)
        assert_same(expected, found, tolerance=1e-10)


def test_max_len_ends_a_text_and_padding_does_not_count():
    model = random_model(preset("tiny-gpt2", max_len=10))
    config = GenerationConfig(max_new_tokens=50, suppress_tokens=(END,))
    found = generate(model, [[5, 6, 7, 8], [9]], config, end=END)
    assert [len(written[0].tokens) for written in found] == [7, 10]
    config = GenerationConfig(max_new_tokens=50, num_beams=2)
    together = generate(model, [[5, 6, 7, 8], [9]], config, end=END)
    assert_same([generate(model, [tokens], config, end=END)[0] for tokens in ([5, 6, 7, 8], [9])], together)


EVERYTHING = tuple(range(preset("tiny-gpt2").vocab_size))


def test_impossible_requests_are_refused_by_name():
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


@pytest.mark.parametrize(
    ("name", "tokens", "options", "message"),
    [
        ("tiny-gpt2", [5, 10**6], {}, "input 1 holds the id 1000000: expected ids from 0 to 39"),
        (
            "tiny-gpt2",
            [5, 10**30],
            {},
            "input 1 holds the id 1000000000000000000000000000000: expected ids from 0 to 39",
        ),
        ("tiny-gpt2", [5, -1], {}, "input 1 holds the id -1: expected ids from 0 to 39"),
        ("tiny-gpt2", torch.tensor([5, 40]), {}, "input 1 holds the id 40: expected ids from 0 to 39"),
        ("tiny-gpt2", [5], {"config": GenerationConfig(prefix=(40,))}, "prefix names token 40: expected 0 to 39"),
        (
            "tiny-gpt2",
            [5],
            {"config": GenerationConfig(forced_eos_token_id=40)},
            "forced_eos_token_id names token 40: expected 0 to 39",
        ),
        ("tiny-marian", [50], {"begin": 1}, "input 1 holds the id 50: expected ids from 0 to 49"),
        ("tiny-marian", [45], {"begin": 40}, "begin=40: expected a token from 0 to 39"),
    ],
)
def test_wrong_ids_are_refused_before_they_reach_the_device(name, tokens, options, message):
    sizes = {"source_vocab_size": 50, "tie": "none"} if name == "tiny-marian" else {}
    # Ids on the meta device cannot be read, like those on a GPU without a synchronization.
    model = build_model(preset(name, **sizes)).to("meta")
    with pytest.raises(ValueError, match=message):
        generate(model, [[5], tokens], end=END, **options)
    with pytest.raises(ValueError, match=message.replace("input 1", "input 0")):
        list(stream(model, tokens, end=END, **options))


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [([6, 5.5], r"5\.5"), ([None], "None"), (torch.tensor([5.0, 6.0]), r"tensor\(5\.\)"), (["5"], "'5'")],
)
def test_ids_that_are_no_integers_are_refused(tokens, shown):
    model = build_model(preset("tiny-gpt2"))
    with pytest.raises(TypeError, match=f"input 1 holds {shown}: expected token ids, which are integers"):
        generate(model, [[5], tokens], end=END)


def test_a_stream_changes_no_mode_between_two_tokens():
    model = random_model(preset("tiny-llama")).train()
    tokens = stream(model, [5, 6], GenerationConfig(max_new_tokens=4, suppress_tokens=(END,)), end=END)
    next(tokens)
    assert not torch.is_inference_mode_enabled()
    assert model.training
    assert len(list(tokens)) == 3
