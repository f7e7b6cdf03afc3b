"""The requests of OpenAI's API that the server understands, as pydantic models. A field that is not here is refused.

Fields without effect here, such as `user`, are accepted because clients send them unasked; each says so.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_TOP_LOG_PROBS = 20
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
SomeText = Annotated[str, Field(min_length=1)]
StopText = Annotated[str, Field(min_length=1, max_length=1000)]


class RequestBody(BaseModel):
    """The body of a request. Every text in it is valid Unicode: JSON can also spell halves of characters."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def check_texts(cls, body: Any) -> Any:
        """Raise ValueError if a text holds half of a surrogate pair, which no tokenizer reads."""
        waiting = [body]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                try:
                    value.encode()
                except UnicodeEncodeError as error:
                    raise ValueError(
                        f"a text has {value[error.start]!r} at character {error.start}: expected whole characters, "
                        "not half of a surrogate pair"
                    ) from error
            elif isinstance(value, dict):
                waiting += [*value, *value.values()]
            elif isinstance(value, list):
                waiting += value
        return body


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = STRICT
    include_usage: bool = Field(False, description="End the stream with an event that counts the tokens.")


class JsonSchemaFormat(BaseModel):
    """A JSON schema that the answer must follow."""

    model_config = STRICT
    name: Annotated[str, Field(max_length=200)] = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = Field(None, description="Without effect: the answer always follows the schema.")


class ResponseFormat(BaseModel):
    """What form the answer must have: any text, JSON, JSON of a schema, or text that matches a regular expression."""

    model_config = STRICT
    type: Literal["text", "json_object", "json_schema", "regex"]
    json_schema: JsonSchemaFormat | None = Field(None, description="The schema, for the type json_schema.")
    pattern: Annotated[str, Field(max_length=10_000)] | None = Field(
        None, description="The regular expression, for the type regex. The whole answer matches it."
    )


class GenerationFields(RequestBody):
    """What completions and chat completions have in common."""

    model_config = STRICT
    model: Annotated[str, Field(max_length=200, description="A name that /v1/models lists.")]
    stream: bool | None = Field(False, description="Send the answer as server-sent events, while it is written.")
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = Field(1, description="How many texts to write.")
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = Field(
        None, description="The text ends before one of these."
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(
        None, description="The same seed gives the same text. Without it the texts of two requests differ."
    )
    temperature: Annotated[float, Field(ge=0, le=10)] | None = Field(
        None, description="0 takes the most likely token; more draws at random. The default is 1."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None, description="Draw from this many likeliest tokens; 0 is all."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = Field(
        None, description="Numbers that are added to the logits of tokens, by token id. -100 forbids a token."
    )
    response_format: ResponseFormat | None = None
    user: str | None = Field(None, description="Without effect.")


class CompletionRequest(GenerationFields):
    """A request to continue texts."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]] = Field(
        description="A text, a list of texts, a list of token ids, or a list of such lists."
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(16, description="The most tokens to write.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)] | None = Field(
        None, description="Report the log-probabilities of the tokens, and of this many likely alternatives."
    )
    echo: bool | None = Field(False, description="Put the prompt before the text.")
    best_of: Annotated[int, Field(ge=1)] | None = Field(None, description="Must be equal to n.")
    suffix: str | None = Field(None, description="Must be empty.")


class TextPart(BaseModel):
    """A part of a message. Only text is understood."""

    model_config = STRICT
    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    """The function of a tool call."""

    model_config = STRICT
    name: Annotated[str, Field(max_length=200)]
    arguments: str = Field("{}", description="The arguments as JSON.")


class ToolCall(BaseModel):
    """A call of a tool that the model asked for earlier in the conversation."""

    model_config = STRICT
    id: Annotated[str, Field(max_length=200)] = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(BaseModel):
    """A message of a conversation."""

    model_config = STRICT
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Annotated[str, Field(max_length=200)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: Annotated[str, Field(max_length=200)] | None = None
    refusal: str | None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None


class FunctionTool(BaseModel):
    """A function that the model may ask to be called."""

    model_config = STRICT
    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool of a chat completion."""

    model_config = STRICT
    type: Literal["function"]
    function: FunctionTool


class ChatRequest(GenerationFields):
    """A request to answer a conversation."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="The most tokens to write.")
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="Another name of max_tokens.")
    logprobs: bool | None = Field(False, description="Report the log-probabilities of the tokens.")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOG_PROBS)] | None = Field(
        None, description="Report this many likely alternatives of each token. Needs logprobs."
    )
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = Field(None, description="Without effect.")
    store: bool | None = Field(None, description="Without effect.")
    metadata: dict[str, Any] | None = Field(None, description="Without effect.")
    modalities: list[Literal["text"]] | None = Field(None, description="Without effect.")
    service_tier: str | None = Field(None, description="Without effect.")
    safety_identifier: str | None = Field(None, description="Without effect.")
    prompt_cache_key: str | None = Field(None, description="Without effect.")


class EmbeddingRequest(RequestBody):
    """A request to turn texts into vectors."""

    model_config = STRICT
    model: Annotated[str, Field(max_length=200, description="A name that /v1/models lists.")]
    input: SomeText | Annotated[list[SomeText], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = Field(None, description="Must be the size of the model's vectors.")
    user: str | None = Field(None, description="Without effect.")

    @field_validator("input", mode="before")
    @classmethod
    def refuse_token_ids(cls, value: Any) -> Any:
        """Refuse token ids, which clients make with a tokenizer of OpenAI's, and empty texts."""
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, int | list) for text in texts):
            raise ValueError(
                "texts, not token ids, whose tokenizer is not known (for langchain-openai: "
                "check_embedding_ctx_length=False)"
            )
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("a text that is not empty, or a list of such texts")
        return value
