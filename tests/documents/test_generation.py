"""Texts written with the documents' models do not depend on the other inputs of their batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer
from glassformer.decoding.engine import Engine
from glassformer.decoding.generate import generate, stream
from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.scoring import score_pairs, score_texts
from glassformer.runtime.choose_runner import record_steps

V, END, BEGIN = 23, 3, 2
SIZES = {"d_model": 16, "num_heads": 4, "d_ff": 20, "dropout": 0.0, "max_seq_len": 40}
GPT = {"num_layers": 2, **SIZES}
T5 = {"num_encoder_layers": 2, "num_decoder_layers": 2, **SIZES}
MODERN = {"norm": "mean_std", "norm_eps": 1e-6, "norm_placement": "pre", "activation": "gelu", "scale_embeddings": True}
MODELS = {
    "GPTModel": lambda: glassformer.GPTModel(V, **GPT),
    "T5Model": lambda: glassformer.T5Model(V, **T5),
    "Transformer": lambda: glassformer.Transformer(V, V, num_layers=2, **SIZES),
    "Transformer of 003": lambda: glassformer.Transformer(V, V, num_layers=2, **SIZES, **MODERN),
}
WAYS = {
    "greedy": GenerationConfig(max_new_tokens=12),
    "beam": GenerationConfig(max_new_tokens=12, num_beams=3, num_return_sequences=2),
    "sampling": GenerationConfig(max_new_tokens=12, do_sample=True, seed=5, num_return_sequences=2),
}
LENGTHS = (1, 4, 9, 4, 13, 2)


def make_model(name):
    """Its weights are large, so that texts depend on what is read, and float64, so that rounding decides nothing."""
    torch.manual_seed(1)
    model = MODELS[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.7)
    return model


def inputs():
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(4, V, (length,), generator=generator).tolist() for length in LENGTHS]


def begin_of(model):
    return None if isinstance(model, glassformer.models.DecoderModel) else BEGIN


def tokens_of(found):
    return [[text.tokens for text in texts] for texts in found]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_each_input_alone_equals_the_batch(name, way):
    model = make_model(name)
    options = {"config": WAYS[way], "end": END, "begin": begin_of(model)}
    alone = [generate(model, [tokens], **options)[0] for tokens in inputs()]
    together = generate(model, inputs(), **options)
    assert tokens_of(together) == tokens_of(alone)
    assert len({tuple(texts[0]) for texts in tokens_of(alone)}) > 1, "all texts are equal: the test would see nothing"


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=8)
@given(some=st.lists(st.lists(st.integers(4, V - 1), min_size=1, max_size=9), min_size=2, max_size=5))
def test_any_inputs_alone_equal_the_batch(name, some):
    model = make_model(name)
    options = {"config": GenerationConfig(max_new_tokens=4), "end": END, "begin": begin_of(model)}
    alone = [generate(model, [tokens], **options)[0] for tokens in some]
    assert tokens_of(generate(model, some, **options)) == tokens_of(alone)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_as_many_inputs_as_tokens_equal_each_alone(name, count):
    """A (batch, length) padding mask that is square must not be read as a (query, key) mask."""
    model = make_model(name)
    some = [list(range(5, 5 + length)) for length in range(1, count + 1)]
    options = {"config": WAYS["greedy"], "end": END, "begin": begin_of(model)}
    alone = [generate(model, [tokens], **options)[0] for tokens in some]
    assert tokens_of(generate(model, some, **options)) == tokens_of(alone)


@pytest.mark.parametrize("name", MODELS)
def test_recorded_steps_write_the_same_texts(name):
    model = make_model(name)
    options = {"config": WAYS["greedy"], "end": END, "begin": begin_of(model)}
    alone = [generate(model, [tokens], **options)[0] for tokens in inputs()]
    record_steps(model)
    assert tokens_of(generate(model, inputs(), **options)) == tokens_of(alone)


def test_padding_takes_no_room_from_a_short_prompt():
    """Padded to a long prompt, a short one may still write as much as alone."""
    model = make_model("GPTModel")
    some = [[5, 6], list(range(4, 20)) * 2 + [7] * 6]
    config = GenerationConfig(max_new_tokens=30)
    alone = [generate(model, [tokens], config, end=END)[0] for tokens in some]
    assert tokens_of(generate(model, some, config, end=END)) == tokens_of(alone)
    assert len(alone[0][0].tokens) > 10, "the text is too short to pass the limit"


def test_greedy_text_follows_the_document_forward():
    """The text of GPTModel, written with a cache, is the argmax of its plain forward without padding."""
    model = make_model("GPTModel")
    found = generate(model, inputs(), WAYS["greedy"], end=END)
    for tokens, (text, *_) in zip(inputs(), found, strict=True):
        written = []
        while len(written) < 12:
            best = int(model(torch.tensor([tokens + written]))[0, -1].argmax())
            if best == END:
                break
            written.append(best)
        assert text.tokens == written


@pytest.mark.parametrize("name", ["Transformer", "Transformer of 003"])
def test_greedy_text_follows_the_transformer_forward(name):
    """The text of `Transformer` is the argmax of its forward under a causal target mask."""
    model = make_model(name)
    found = generate(model, inputs(), WAYS["greedy"], end=END, begin=BEGIN)
    for tokens, (text, *_) in zip(inputs(), found, strict=True):
        written = []
        while len(written) < 12:
            target = torch.tensor([[BEGIN, *written]])
            causal = torch.ones(1, 1, target.shape[1], target.shape[1]).tril()
            best = int(model(torch.tensor([tokens]), target, None, causal)[0, -1].argmax())
            if best == END:
                break
            written.append(best)
        assert text.tokens == written


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_writes_what_each_input_gets_alone(name):
    model = make_model(name)
    engine = Engine(model, end=END, begin=begin_of(model), max_rows=4)
    # Different limits, so that rows leave and join the running batch at different steps.
    orders = [(tokens, GenerationConfig(max_new_tokens=3 + 2 * index)) for index, tokens in enumerate(inputs())]
    requests = [engine.submit(tokens, config) for tokens, config in orders]
    while not all(request.is_done for request in requests):
        engine.step()
    options = {"end": END, "begin": begin_of(model)}
    alone = [generate(model, [tokens], config, **options)[0] for tokens, config in orders]
    assert tokens_of(request.texts for request in requests) == tokens_of(alone)
    streamed = [list(stream(model, tokens, config, **options)) for tokens, config in orders]
    assert streamed == [texts[0] for texts in tokens_of(alone)]


@pytest.mark.parametrize("name", MODELS)
def test_scores_do_not_depend_on_the_batch(name):
    model = make_model(name)
    texts = [[5, *tokens] for tokens in inputs()]
    if begin_of(model) is None:
        together, alone = score_texts(model, texts), [score_texts(model, [text])[0] for text in texts]
    else:
        targets = texts[::-1]
        together = score_pairs(model, texts, targets, begin=BEGIN, end=END)
        pairs = zip(texts, targets, strict=True)
        alone = [score_pairs(model, [s], [t], begin=BEGIN, end=END)[0] for s, t in pairs]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("name", ["Transformer", "T5Model"])
def test_scores_of_a_pair_are_those_of_a_causal_decoder(name):
    """A target token's score does not depend on the tokens behind it."""
    model = make_model(name)
    short = score_pairs(model, [[5, 6, 7]], [[8, 9]], begin=BEGIN, end=END)[0]
    longer = score_pairs(model, [[5, 6, 7]], [[8, 9, 10, 11]], begin=BEGIN, end=END)[0]
    assert longer[:2] == pytest.approx(short[:2], abs=1e-4)
