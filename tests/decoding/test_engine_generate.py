"""`generate` and `stream` with proposed tokens: the same texts, reasons, log-probabilities and errors."""

import gc
import weakref
from dataclasses import replace

import pytest

from glassformer.decoding import GenerationConfig, generate, stream
from glassformer.runtime import choose_runner
from recording import BEGIN, DECODERS, END, PAIR, assert_same, make

MODELS = {"decoder": make(DECODERS["window"]), "pair": make(PAIR)}
INPUTS = [[5, 6, 7, 5, 6, 7, 5, 6], [8], [9, 10, 9, 10, 9], [5, 6, 7]]
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=14),
    "samples": GenerationConfig(max_new_tokens=9, do_sample=True, seed=3, num_return_sequences=3),
    "rules": GenerationConfig(max_new_tokens=12, repetition_penalty=1.3, min_new_tokens=5),
}


def ends(name):
    return {"end": END, "begin": BEGIN if name == "pair" else None}


@pytest.mark.parametrize("way", CONFIGS)
@pytest.mark.parametrize("name", MODELS)
def test_proposed_tokens_change_no_text(name, way):
    model, config = MODELS[name], CONFIGS[way]
    fast = replace(config, prompt_lookup_num_tokens=3)
    plain = generate(model, INPUTS, config, with_log_probs=True, **ends(name))
    found = generate(model, INPUTS, fast, with_log_probs=True, **ends(name))
    assert_same(plain, found)
    assert [[text.reason for text in texts] for texts in plain] == [[text.reason for text in texts] for texts in found]
    assert generate(model, [], fast, **ends(name)) == []
    if config.num_return_sequences == 1:
        streamed = [list(stream(model, tokens, fast, **ends(name))) for tokens in INPUTS]
        assert streamed == [texts[0].tokens for texts in plain]


def test_an_error_of_a_request_is_raised():
    config = GenerationConfig(suppress_tokens=tuple(range(23)), prompt_lookup_num_tokens=3)
    with pytest.raises(ValueError, match="the rules of a request forbid every token"):
        generate(MODELS["decoder"], INPUTS, config, end=END)
    with pytest.raises(ValueError, match="the rules of a request forbid every token"):
        list(stream(MODELS["decoder"], [5], config, end=END))


def test_a_beam_takes_no_proposals():
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens=3 with num_beams=2: expected greedy search"):
        GenerationConfig(num_beams=2, prompt_lookup_num_tokens=3)


def test_the_pool_is_kept_for_the_next_call_while_the_model_exists():
    model, config = make(DECODERS["alibi"]), GenerationConfig(max_new_tokens=5, prompt_lookup_num_tokens=2)
    texts = generate(model, INPUTS, config, end=END)
    kept = choose_runner._POOLS[model]
    assert kept.pool.n_busy == 0
    assert generate(model, INPUTS, config, end=END) == texts
    assert choose_runner._POOLS[model] is kept
    tokens = stream(model, INPUTS[0], config, end=END)
    next(tokens)
    tokens.close()  # a text that is not read to its end gives its row back, too
    assert choose_runner._POOLS[model].pool.n_busy == 0
    pool = weakref.ref(kept.pool)
    del model, kept, tokens
    gc.collect()
    assert pool() is None


def test_a_kept_pool_is_not_used_after_the_model_has_changed_its_dtype():
    model, config = make(DECODERS["alibi"]), GenerationConfig(max_new_tokens=5, prompt_lookup_num_tokens=2)
    generate(model, INPUTS, config, end=END)
    kept = choose_runner._POOLS[model]
    generate(model.float(), INPUTS, config, end=END)
    assert choose_runner._POOLS[model] is not kept
