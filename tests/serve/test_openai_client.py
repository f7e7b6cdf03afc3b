"""OpenAI's own Python package works with the server: sync, async, streams, structured outputs, embeddings, errors."""

import asyncio
import warnings
from typing import Literal

import pytest
from pydantic import BaseModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openai

HI = [{"role": "user", "content": "hi"}]


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    age: Literal[1, 2, 3]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_models_are_listed(client):
    assert "chat" in [model.id for model in client.models.list()]
    assert client.models.retrieve("chat").id == "chat"


def test_a_chat_is_answered_whole_and_as_a_stream(client):
    settings = {"model": "chat", "messages": HI, "max_tokens": 12, "seed": 4, "temperature": 1, "stop": ["q"]}
    whole = client.chat.completions.create(**settings)
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    chunks = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_packages_stream_helper_builds_the_same_message(client):
    settings = {"model": "chat", "messages": HI, "max_tokens": 400, "seed": 4, "stop": ["a", "e", " ", "t"]}
    with client.chat.completions.stream(**settings) as stream:
        stream.until_done()
        streamed = stream.get_final_completion()
    whole = client.chat.completions.create(**settings)
    assert streamed.choices[0].message.content == whole.choices[0].message.content


def test_log_probabilities_are_read(client):
    found = client.chat.completions.create(
        model="chat", messages=HI, max_tokens=3, logprobs=True, top_logprobs=2, temperature=0
    )
    for entry in found.choices[0].logprobs.content:
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    old = client.completions.create(model="chat", prompt="the", max_tokens=3, logprobs=2, echo=True, temperature=0)
    logs = old.choices[0].logprobs
    assert "".join(logs.tokens) == old.choices[0].text


def test_a_structured_output_becomes_an_object(client):
    for seed in range(3):
        found = client.chat.completions.parse(
            model="chat", messages=HI, response_format=Pet, seed=seed, temperature=2, max_tokens=60
        )
        assert isinstance(found.choices[0].message.parsed, Pet)


def test_texts_become_vectors(client):
    found = client.embeddings.create(model="embedder", input=["the cat", "a"])
    assert len(found.data) == 2
    for entry in found.data:
        assert sum(number**2 for number in entry.embedding) == pytest.approx(1, abs=1e-3)


def test_many_requests_run_at_once(server):
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def stream(seed):
                chunks = await client.completions.create(
                    model="chat", prompt="the", max_tokens=10, seed=seed, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in chunks])

            async def whole(seed):
                found = await client.completions.create(model="chat", prompt="the", max_tokens=10, seed=seed)
                return found.choices[0].text

            return await asyncio.gather(*map(stream, range(8))), await asyncio.gather(*map(whole, range(8)))

    streamed, whole = asyncio.run(ask_all())
    assert streamed == whole
    assert len({*streamed}) > 1


def test_errors_become_the_packages_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="there is no such model"):
        client.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError, match="expected at most 4096") as caught:
        client.completions.create(model="chat", prompt="a", max_tokens=10**6)
    assert caught.value.param == "max_tokens"


def test_a_wrong_key_is_an_authentication_error(guarded):
    client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0)
    with client, pytest.raises(openai.AuthenticationError):
        client.models.list()
