import pytest

from glassformer.pipelines.generator import Generator
from glassformer.pipelines.language_model import LanguageModel
from glassformer.serve.api_errors import ApiError
from glassformer.serve.generation_fields import check_count, check_max_tokens, generation_config, is_greedy
from glassformer.serve.openai_schemas import CompletionRequest
from glassformer.serve.server_options import RequestLimits
from pipelines.tiny_pipelines import make


def request(**fields):
    return CompletionRequest.model_validate({"model": "m", "prompt": "a", **fields})


def config_of(pipeline=None, n_prompt=3, **fields):
    return generation_config(request(**fields), pipeline or make(Generator), n_prompt, 5)


def test_the_default_is_to_sample_with_a_seed_of_its_own():
    first, second = config_of(), config_of()
    assert first.do_sample
    assert (first.temperature, first.top_p, first.top_k) == (1.0, 1.0, 0)
    assert first.seed != second.seed
    assert config_of(seed=7).seed == 7


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-310])
def test_temperature_0_takes_the_likeliest_token(temperature):
    config = config_of(temperature=temperature, n=3, top_p=0.5, seed=3)
    assert not config.do_sample
    assert config.num_return_sequences == 1
    assert is_greedy(request(temperature=temperature))


def test_fields_become_settings():
    config = config_of(
        n=2, stop=["x"], presence_penalty=1, frequency_penalty=-1, logit_bias={"5": 2, "6": -100}, min_p=0.1, top_k=4
    )
    assert config.num_return_sequences == 2
    assert config.stop_strings == ("x",)
    assert (config.presence_penalty, config.frequency_penalty) == (1, -1)
    assert config.logit_bias == {5: 2, 6: float("-inf")}
    assert (config.min_p, config.top_k) == (0.1, 4)
    assert config_of(stop="y").stop_strings == ("y",)


@pytest.mark.parametrize("key", ["-1", "x", "99999", "1.0", "٣", "1" * 50])
def test_a_bias_must_name_a_token(key):
    with pytest.raises(ApiError, match="expected token ids from 0 to"):
        config_of(logit_bias={key: 1})


def test_a_model_of_one_long_text_writes_no_special_tokens():
    pipeline = make(LanguageModel)
    pipeline.has_documents = False
    assert set(pipeline.tokenizer.special_ids) <= set(config_of(pipeline).suppress_tokens)


def test_limits_are_named_with_their_flags():
    with pytest.raises(ApiError, match="the prompt has 65 tokens: expected at most 64"):
        config_of(n_prompt=65)
    limits = RequestLimits(max_tokens=10)
    assert check_max_tokens("max_tokens", None, 512, limits) == 10
    assert check_max_tokens("max_tokens", 7, 512, limits) == 7
    with pytest.raises(ApiError, match=r"max_tokens=11: expected at most 10 \(--max-tokens"):
        check_max_tokens("max_tokens", 11, 512, limits)
    with pytest.raises(ApiError, match=r"n=9: expected at most 8 \(--max-rows"):
        check_count(request(n=9), 8)
