import pytest

from glassformer.serve.api_errors import ApiError
from glassformer.serve.text_generation import check_prompt_ids, finish_reason, usage


def test_ends_have_openais_names():
    assert [finish_reason(reason) for reason in (None, "end", "stop", "length")] == [None, "stop", "stop", "length"]


def test_token_ids_are_checked():
    check_prompt_ids("prompt", [[1, 2]], 3)
    with pytest.raises(ApiError, match="expected token ids from 0 to 2"):
        check_prompt_ids("prompt", [[1, 3]], 3)
    with pytest.raises(ApiError, match="empty list"):
        check_prompt_ids("prompt", [[]], 3)


def test_usage_adds_up():
    assert usage(3, 4, 2) == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
