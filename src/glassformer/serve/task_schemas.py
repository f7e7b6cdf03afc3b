"""The request of `/v1/tasks/{model}`: what `glassformer run` takes, as JSON."""

from typing import Annotated

from pydantic import BaseModel, Field

from glassformer.serve.openai_schemas import STRICT, RequestBody


class QuestionInput(BaseModel):
    """A question about a text."""

    model_config = STRICT
    question: Annotated[str, Field(min_length=1)]
    context: Annotated[str, Field(min_length=1)]


class PairInput(BaseModel):
    """Two texts, to be compared or classified together."""

    model_config = STRICT
    first: str
    second: str


TaskInput = str | PairInput | QuestionInput


class TaskRequest(RequestBody):
    """Texts for a model, and how it shall answer. Which settings apply depends on the model's task."""

    model_config = STRICT
    input: TaskInput | list[TaskInput] = Field(
        description="A text or a list of texts. Pairs are {first, second}; questions are {question, context}."
    )
    n_best: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="Return this many texts or labels for each input, best first."
    )
    scores: bool = Field(False, description="Return the mean log-probability of each text.")
    alignment: bool = Field(False, description="Return which words of a translation come from which words.")
    truncate: bool = Field(False, description="Cut an input that is longer than the model reads; else it is an error.")
    beam: Annotated[int, Field(ge=1, le=64)] | None = Field(None, description="Beam width; 1 is greedy search.")
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="The most tokens of each text.")
    temperature: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None, description="0 takes the most likely token; more draws at random."
    )
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    source_language: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="Language code of the input, for a pretrained translator of many languages."
    )
    target_language: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="Language code of the output, likewise."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
