import json
import re

import pytest
import torch

from glassformer.pipelines.generator import Generator
from glassformer.serve.api_errors import ApiError
from glassformer.serve.openai_schemas import ResponseFormat
from glassformer.serve.served_models import ServedModel
from glassformer.serve.structured_output import constraint_maker
from glassformer.serve.token_bytes import TokenBytes
from pipelines.tiny_pipelines import make

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pipeline = make(Generator)
    found = ServedModel("m", tmp_path_factory.mktemp("m"), 0, pipeline)
    found.token_bytes = TokenBytes(pipeline.tokenizer)
    return found


def maker_of(model, **fields):
    return constraint_maker(ResponseFormat.model_validate(fields), model)


def write(model, maker, seed, limit=200):
    """Write random tokens that the constraint allows, until it is complete or END is drawn."""
    constraint, chance, tokens = maker(), torch.Generator().manual_seed(seed), []
    size, end = model.pipeline.model.config.vocab_size, model.pipeline.end
    while not constraint.is_complete and len(tokens) < limit:
        scores = torch.zeros(size)
        constraint.forbid(scores)
        token = int(torch.multinomial(scores.softmax(0), 1, generator=chance))
        if token == end:
            break
        constraint.add(token)
        tokens.append(token)
    return b"".join(map(model.token_bytes.of, tokens)).decode(), len(tokens) < limit


@pytest.mark.parametrize("seed", range(5))
def test_random_texts_follow_a_schema(model, seed):
    maker = maker_of(model, type="json_schema", json_schema={"name": "pet", "schema": SCHEMA})
    text, is_whole = write(model, maker, seed)
    assert is_whole
    found = json.loads(text)
    assert found.keys() == {"age", "kind"}
    assert 0 <= found["age"] <= 150
    assert found["kind"] in ("cat", "dog")


def test_random_texts_are_json_objects(model):
    maker = maker_of(model, type="json_object")
    whole = [text for text, is_whole in (write(model, maker, seed) for seed in range(8)) if is_whole]
    assert whole
    for text in whole:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("pattern", ["(ab){2,5}c?", "[0-9]{4}-[0-9]{2}", "yes|no"])
def test_random_texts_match_a_regular_expression(model, pattern):
    for seed in range(3):
        text, is_whole = write(model, maker_of(model, type="regex", pattern=pattern), seed)
        assert is_whole
        assert re.fullmatch(pattern, text)


def test_constraints_of_one_request_do_not_share_their_state(model):
    maker = maker_of(model, type="regex", pattern="ab")
    first, second = maker(), maker()
    tokens = {model.token_bytes.of(token): token for token in range(model.pipeline.model.config.vocab_size)}
    first.add(tokens[b"a"])
    scores = torch.zeros(model.pipeline.model.config.vocab_size)
    second.forbid(scores)
    assert scores[tokens[b"a"]] == 0
    assert scores[tokens[b"b"]] == float("-inf")


def test_an_empty_text_may_follow_a_regular_expression(model):
    assert write(model, maker_of(model, type="regex", pattern=""), seed=0) == ("", True)


def test_any_text_needs_no_constraint(model):
    assert constraint_maker(None, model) is None
    assert maker_of(model, type="text") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "json_schema"},
        {"type": "regex"},
        {"type": "regex", "pattern": "("},
        {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}},
        {"type": "json_schema", "json_schema": {"schema": {"$ref": "https://example.org/schema"}}},
        {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}},
        {"type": "regex", "pattern": r"[^\s\S]"},
        {"type": "json_schema", "json_schema": {"schema": {"description": "x" * 300_000}}},
    ],
)
def test_what_cannot_be_followed_is_refused(model, fields):
    with pytest.raises(ApiError, match="response_format") as caught:
        maker_of(model, **fields)
    assert caught.value.status == 400
