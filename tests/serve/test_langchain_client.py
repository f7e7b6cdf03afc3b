"""LangChain's client works with the server."""

import warnings
from typing import Literal

import pytest
from pydantic import BaseModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    langchain_openai = pytest.importorskip("langchain_openai")

pytestmark = pytest.mark.filterwarnings("ignore")


class Pet(BaseModel):
    """A pet."""

    kind: Literal["cat", "dog"]


@pytest.fixture
def settings(server):
    return {"base_url": f"{server.url}/v1", "api_key": "none", "model": "chat", "max_retries": 0, "temperature": 0}


def test_a_chat_is_answered_whole_and_as_a_stream(settings):
    chat = langchain_openai.ChatOpenAI(**settings, max_tokens=8)
    whole = chat.invoke([("system", "be brief"), ("human", "hi")])
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 8
    pieces = [piece.content for piece in chat.stream([("system", "be brief"), ("human", "hi")])]
    assert "".join(pieces) == whole.content


def test_a_structured_output_becomes_an_object(settings):
    chat = langchain_openai.ChatOpenAI(**settings, max_tokens=40)
    assert isinstance(chat.with_structured_output(Pet, method="json_schema").invoke("hi"), Pet)


def test_texts_become_vectors(server):
    embedder = langchain_openai.OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key="none", model="embedder", check_embedding_ctx_length=False
    )
    assert len(embedder.embed_documents(["the cat", "a"])) == 2
