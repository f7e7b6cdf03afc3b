"""Let a text follow a grammar: JSON, JSON of a schema, or a regular expression. The grammars are llguidance's.

Before each token the grammar says which tokens may come next, and all other tokens are forbidden. The text is therefore
always the beginning of a valid text. It is complete if it ended by itself, and incomplete if it reached max_tokens.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glassformer.base.checks import shortened
from glassformer.decoding.step_loop import TokenConstraint
from glassformer.serve.api_errors import ApiError
from glassformer.serve.openai_schemas import ResponseFormat
from glassformer.serve.served_models import ServedModel
from glassformer.serve.token_bytes import TokenBytes

JSON_STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options that allow no free white space: a weak model might write any amount of it."""
MAX_GRAMMAR = 200_000
"""The most characters of a grammar."""


class _Vocabulary:
    """What llguidance asks of a tokenizer: the bytes of each token, and which of them are special."""

    def __init__(self, token_bytes: TokenBytes, vocab_size: int, end: int, encode: Callable[[str], list[int]]):
        self.eos_token_id = end
        self.bos_token_id = None
        # A token without bytes is never allowed, as if it were special. llguidance marks special tokens by a byte 0xFF.
        self.tokens = [token_bytes.of(index) or b"\xff" + str(index).encode() for index in range(vocab_size)]
        self.special_token_ids = [index for index in range(vocab_size) if not token_bytes.of(index)]
        self._encode = encode
        self._ids = {token: index for index, token in enumerate(self.tokens) if index not in {*self.special_token_ids}}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        """Tokenize a text that the grammar forces, as the model's tokenizer does if that keeps the text.

        It may not: some tokenizers put a space before every text. Then the longest token is taken each time.
        """
        found = self._encode(text.decode("utf-8", "replace"))
        return found if b"".join(self.tokens[index] for index in found) == text else self._longest_tokens(text)

    def _longest_tokens(self, text: bytes) -> list[int]:
        found: list[int] = []
        while text:
            sizes = range(min(len(text), self._longest), 0, -1)
            size = next((size for size in sizes if text[:size] in self._ids), 0)
            if not size:  # the vocabulary cannot write this byte: the grammar continues byte by byte
                return found
            found.append(self._ids[text[:size]])
            text = text[size:]
        return found


class GrammarConstraint:
    """The constraint of one text by a grammar (`decoding.step_loop.TokenConstraint`)."""

    def __init__(self, matcher: Any, end: int, vocab_size: int):
        self._matcher, self._end = matcher, end
        self._bits = torch.zeros((vocab_size + 31) // 32, dtype=torch.int32)
        self._shifts = torch.arange(32, dtype=torch.int32)

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow, or the grammar is too complex to continue."""
        return bool(self._matcher.is_stopped() or self._matcher.is_error())

    def forbid(self, scores: Tensor) -> None:
        """Set the logits (V,) of the tokens that may not come next to -inf."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.data_ptr(), self._bits.numel() * 4)
        allowed = ((self._bits[:, None] >> self._shifts) & 1).bool().flatten()[: len(scores)]
        scores.masked_fill_(~allowed.to(scores.device), float("-inf"))

    def add(self, token: int) -> None:
        """Note that this token was chosen."""
        self._matcher.consume_token(token)


class ConstraintMaker:
    """Makes the constraints of a request, one for each of its texts. `format` is what the request asks for."""

    def __init__(self, format: ResponseFormat, matcher: Any, end: int, vocab_size: int):
        self.format = format
        self._matcher, self._end, self._vocab_size = matcher, end, vocab_size

    def __call__(self) -> TokenConstraint:
        """Return the constraint of a text that begins."""
        return GrammarConstraint(self._matcher.deep_copy(), self._end, self._vocab_size)


def constraint_maker(format: ResponseFormat | None, model: ServedModel) -> ConstraintMaker | None:
    """Return the maker of constraints for a model's texts; None if any text is allowed.

    Raises an ApiError if the schema or the regular expression cannot be read, or no text follows it.
    """
    if format is None or format.type == "text":
        return None
    from llguidance import LLMatcher

    for kind, field in (("json_schema", "json_schema"), ("regex", "pattern")):
        if format.type == kind and getattr(format, field) is None:
            message = f"response_format.{field} is missing: the type {kind} needs it"
            raise ApiError(400, message, param="response_format")
    if format.type == "regex":
        grammar = LLMatcher.grammar_from_regex(format.pattern or "")
    else:
        schema = format.json_schema.schema_ if format.json_schema is not None else {"type": "object"}
        text = json.dumps(schema)
        if len(text) > MAX_GRAMMAR:
            raise ApiError(
                400,
                f"response_format has a schema of {len(text)} characters: expected at most {MAX_GRAMMAR}",
                param="response_format",
            )
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=JSON_STYLE)
    tokenizer = _grammar_tokenizer(model)
    first = LLMatcher(tokenizer, grammar, log_level=0)
    if first.is_error():
        reason = shortened(first.get_error().splitlines()[0], 300)
        raise ApiError(400, f"response_format cannot be followed: {reason}", param="response_format")
    end, vocab_size = model.pipeline.end, model.pipeline.model.config.vocab_size
    maker = ConstraintMaker(format, first, end, vocab_size)
    trial = maker()
    trial.forbid(torch.zeros(vocab_size))
    if trial.is_complete:  # the grammar has failed at the first token
        raise ApiError(400, "response_format cannot be followed: no text follows it", param="response_format")
    return maker


def _grammar_tokenizer(model: ServedModel) -> Any:
    """Return the vocabulary of a model in the form that llguidance needs. It is made once, which takes a second."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if model.grammar_tokenizer is None:
        pipeline = model.pipeline
        assert model.token_bytes is not None
        size = pipeline.model.config.vocab_size
        end = pipeline.end
        if end < 0:
            raise ApiError(400, f"response_format: {model.name} has no token that ends a text", param="response_format")
        encode = getattr(pipeline.tokenizer, "encode_plain", pipeline.tokenizer.encode)
        wrapper = TokenizerWrapper(_Vocabulary(model.token_bytes, size, end, encode))
        model.grammar_tokenizer = LLTokenizer(wrapper, n_vocab=size, eos_token=end)
    return model.grammar_tokenizer
