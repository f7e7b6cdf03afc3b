import pytest
from pydantic import ValidationError

from glassformer.serve.task_schemas import PairInput, QuestionInput, TaskRequest


def test_an_input_is_a_text_a_pair_or_a_question():
    inputs = ["a", {"first": "a", "second": "b"}, {"question": "q", "context": "c"}]
    found = TaskRequest.model_validate({"input": inputs}).input
    assert [type(one) for one in found] == [str, PairInput, QuestionInput]
    assert TaskRequest.model_validate({"input": "a"}).input == "a"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": 3},
        {"input": {"first": "a"}},
        {"input": "a", "n_best": 0},
        {"input": "a", "beam": 65},
        {"input": "a", "x": 1},
    ],
)
def test_wrong_values_are_refused(body):
    with pytest.raises(ValidationError):
        TaskRequest.model_validate(body)
