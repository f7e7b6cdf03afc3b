"""The generator writes what HF Transformers writes, and renders conversations."""

from dataclasses import replace

import pytest
import torch

from glassformer.decoding import GenerationConfig
from glassformer.pipelines.generator import Generator, as_messages
from glassformer.pipelines.load import load
from glassformer.pipelines.pipeline import LineAnswer, LineRequest
from pipelines.hf_folders import WORDS
from pipelines.tiny_pipelines import decoder as tiny_decoder
from pipelines.tiny_pipelines import make, pretrained


def test_a_decoder_writes_what_hf_writes(decoder):
    folder, theirs = decoder
    model = load(folder)
    assert isinstance(model, Generator)
    ids = [WORDS.index(word) for word in ("the", "cat", "sat")]
    written = theirs.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False, eos_token_id=0, pad_token_id=1)
    expected = written[0, 3:].tolist()
    expected = expected[: expected.index(0)] if 0 in expected else expected
    config = GenerationConfig(max_new_tokens=6)
    text = model.tokenizer.decode(expected)
    assert model.run(["the cat sat"], config=config) == [text]
    assert "".join(model.stream("the cat sat", config)) == text


def test_a_prompt_gives_the_same_text_alone_and_in_a_batch(decoder):
    model = load(decoder[0])
    prompts = ["the cat sat", "a", "", "dog on the mat . a b c d"]
    config = GenerationConfig(max_new_tokens=5)
    assert model.run(prompts, config=config) == [model.run([prompt], config=config)[0] for prompt in prompts]


def test_a_long_prompt_is_refused_and_keeps_its_beginning_if_it_may_be_cut(decoder):
    model = load(decoder[0])
    limit, config = model.model.config.max_len, GenerationConfig(max_new_tokens=8)
    long = " ".join(["dog", "sat"] + ["cat"] * 100)
    n_tokens = len(model.read(long))
    message = f"input 2 of 2 has {n_tokens} tokens: expected at most {limit}, .* --truncate .*truncate=True"
    with pytest.raises(ValueError, match=message):
        model.run(["dog", long], config=config)
    with pytest.raises(ValueError, match=f"the input has .* tokens: expected at most {limit}"):
        list(model.stream(long, config))
    model = load(decoder[0], truncate=True)
    (kept,) = model.fit_prompts([model.read(long)], config)
    assert kept == model.read(long)[: limit - 8]
    cut, whole = model.run([long, "dog"], config=config)
    assert cut == "".join(model.stream(long, config))
    assert whole == model.run("dog", config=config)
    assert model.n_truncated == 3


def test_a_conversation_is_rendered_by_the_chat_template(decoder):
    model = load(decoder[0])
    names = ("<s>", "the", "dog", "on")
    assert model.answer_to([{"role": "user", "content": "the dog"}]) == [WORDS.index(name) for name in names]
    # A special token that a user types is encoded as text.
    assert WORDS.index("</s>") not in model.answer_to([{"role": "user", "content": "the </s> dog"}])
    assert isinstance("".join(model.chat([{"role": "user", "content": "cat"}])), str)


def test_an_empty_prompt_is_the_token_that_begins_a_text():
    tool = make(Generator)
    assert tool.read("") == [tool.tokenizer.begin]


def test_a_model_without_a_chat_template_cannot_answer():
    tool = Generator(tiny_decoder(pretrained()), pretrained())
    assert not tool.can_chat
    with pytest.raises(ValueError, match="the model has no chat template"):
        tool.run(["hello"], chat=True)


def test_the_system_message_comes_first():
    assert [one["role"] for one in as_messages("hello", "Be short.")] == ["system", "user"]
    assert as_messages("hello") == [{"role": "user", "content": "hello"}]


def test_a_blank_line_stays_blank_and_an_empty_prompt_is_answered(decoder):
    model = load(decoder[0])
    request = LineRequest(generation=GenerationConfig(max_new_tokens=5), n_best=1)
    for chat in (False, True):
        first, blank, spaces = model.answer_lines(["the cat sat", "", "  "], replace(request, chat=chat))
        assert first.line
        assert blank == spaces == LineAnswer("", {"text": "", "n_best": []}, ("",), ())
    assert model.answer_lines([""], request) == [blank]
    (found,) = model.answer_texts([""], request)
    assert found.line == "".join(model.stream("", request.generation)) != ""


def test_texts_are_a_list_and_not_one_string():
    with pytest.raises(TypeError, match=r"^lines is 'one two': expected a list of strings$"):
        make(Generator).answer_texts("one two", LineRequest())
