import pytest
from pydantic import ValidationError

from glassformer.serve.openai_schemas import ChatRequest, CompletionRequest, EmbeddingRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0, "top_p": 0.9, "n": 3, "stop": "END", "seed": -5},
        {"stop": ["a", "b"], "logit_bias": {"5": -100}, "max_completion_tokens": 5},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"temperature": None, "n": None, "stop": None, "max_tokens": None, "user": "me"},
    ],
)
def test_what_clients_send_is_read(more):
    ChatRequest.model_validate({**CHAT, **more})


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": "1"},
        {"temperature": float("nan")},
        {"temperature": -1},
        {"n": 0},
        {"n": 10**9},
        {"n": True},
        {"max_tokens": 1.5},
        {"stop": [""]},
        {"stop": ["x"] * 17},
        {"seed": 2**70},
        {"messages": []},
        {"messages": [{"role": "root", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"unknown": 1},
        {"logit_bias": {"1": 1e9}},
        {"top_logprobs": 21},
    ],
)
def test_wrong_values_are_refused(more):
    with pytest.raises(ValidationError):
        ChatRequest.model_validate({**CHAT, **more})


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_a_prompt_has_four_forms(prompt):
    assert CompletionRequest.model_validate({"model": "m", "prompt": prompt}).prompt == prompt


@pytest.mark.parametrize("given", ["", [], [""], [1, 2], [["a"]], None, 3])
def test_an_embedding_needs_texts(given):
    with pytest.raises(ValidationError):
        EmbeddingRequest.model_validate({"model": "m", "input": given})


def test_half_of_a_character_is_refused():
    for wrong in ({"prompt": "a\ud800"}, {"prompt": ["a", "\udfff"]}, {"prompt": "a", "\ud800": 1}):
        with pytest.raises(ValidationError, match="half of a surrogate pair"):
            CompletionRequest.model_validate({"model": "m", **wrong})
    assert CompletionRequest.model_validate({"model": "m", "prompt": "😀"}).prompt == "😀"
