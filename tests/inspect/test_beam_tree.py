"""The tree of a beam search ends with the texts of the search, and each hypothesis continues its parent."""

from dataclasses import replace

import pytest
import torch

from glassformer.decoding import GenerationConfig, generate
from glassformer.inspect.beam_tree import trace_beam
from glassformer.inspect.recorder import record
from glassformer.pipelines.language_model import LanguageModel
from glassformer.pipelines.translator import Translator
from pipelines.tiny_pipelines import make

SETTINGS = [
    {"num_beams": 3, "max_new_tokens": 8},
    {"num_beams": 4, "max_new_tokens": 6, "length_penalty": 0.2, "early_stopping": True},
    {"num_beams": 4, "max_new_tokens": 6, "num_beam_groups": 2, "diversity_penalty": 0.7},
    {"num_beams": 3, "max_new_tokens": 8, "coverage_penalty": 0.3},
]


def lively(kind):
    """Return a pipeline whose random model ends some of its texts."""
    pipe = make(kind)
    with torch.no_grad():
        for parameter in pipe.model.parameters():
            parameter.add_(0.25 * torch.randn_like(parameter))
        if pipe.model.head.out_proj.bias is not None:
            pipe.model.head.out_proj.bias[2] += 2.0
    return pipe


def tokens_of(tree, number):
    by_id = {one["id"]: one for step in tree["steps"] for one in step["hypotheses"]}
    tokens = []
    while number is not None:
        tokens.append(by_id[number]["token_id"])
        number = by_id[number]["parent"]
    return tokens[::-1]


@pytest.mark.parametrize("settings", SETTINGS)
def test_final_texts_are_those_of_the_search(settings):
    pipe, config = lively(Translator), GenerationConfig(**settings)
    source = [*pipe.source_tokenizer.encode("the old cat sees"), 2]
    tree = trace_beam(pipe.model, source, config, begin=1, end=2, tokenizer=pipe.target_tokenizer)
    (expected,) = generate(pipe.model, [source], replace(config, num_return_sequences=config.num_beams), begin=1, end=2)
    by_id = {one["id"]: one for step in tree["steps"] for one in step["hypotheses"]}
    if config.num_beam_groups == 1:
        for number, text in zip(tree["final"], expected, strict=True):
            tokens = tokens_of(tree, number)
            assert (tokens[:-1] if tokens[-1] == 2 else tokens) == text.tokens
            assert by_id[number]["score"] == pytest.approx(text.score, abs=1e-4)
    else:
        best = tokens_of(tree, tree["final"][0])
        assert (best[:-1] if best[-1] == 2 else best) == expected[0].tokens
    for step in tree["steps"]:
        kept = [one for one in step["hypotheses"] if one["kept"] and not one["finished"]]
        assert len(kept) <= config.num_beams
        assert all(one["reason"] for one in step["hypotheses"] if not one["kept"])


def test_a_hypothesis_costs_its_parent_and_its_token():
    pipe = lively(Translator)
    source = [*pipe.source_tokenizer.encode("the old cat"), 2]
    config = GenerationConfig(num_beams=3, max_new_tokens=5)
    tree = trace_beam(pipe.model, source, config, begin=1, end=2, tokenizer=pipe.target_tokenizer)
    one = tree["steps"][-1]["hypotheses"][-1]
    target = [1, *tokens_of(tree, one["id"])]
    name = "decoder.layers.0.cross_attn.weights"
    with torch.no_grad(), record(pipe.model, name) as recorded:
        logs = pipe.model(torch.tensor([source]), torch.tensor([target[:-1]]))[0].log_softmax(-1)
    total = sum(float(logs[place, token]) for place, token in enumerate(target[1:]))
    assert one["sum"] == pytest.approx(total, abs=1e-4)
    assert one["attention"] == pytest.approx(recorded[name][0, :, -1].mean(0).tolist(), abs=1e-4)


def test_decoders_have_trees_too():
    pipe = lively(LanguageModel)
    config = GenerationConfig(num_beams=2, max_new_tokens=3)
    tree = trace_beam(pipe.model, [2, 5, 6], config, begin=None, end=2, tokenizer=pipe.tokenizer)
    (expected,) = generate(pipe.model, [[2, 5, 6]], config, end=2)
    assert tokens_of(tree, tree["final"][0])[: len(expected[0].tokens)] == expected[0].tokens
    assert tree["steps"][0]["hypotheses"][0]["attention"] is None
