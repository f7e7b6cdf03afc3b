"""A generation request of the engine and its progress."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from glassformer.decoding.generation_config import GenerationConfig
from glassformer.decoding.open_batch import GeneratedText, generated_text_of, limit_by_source
from glassformer.decoding.step_loop import SequenceState, TokenConstraint
from glassformer.models import DecoderModel
from glassformer.runtime.step_runner import TextModel, limit_new_tokens


class EngineFullError(RuntimeError):
    """`Engine.submit` refused a request: too many requests wait, or this one alone exceeds a limit of the engine."""


class RequestTooLargeError(EngineFullError):
    """A request needs more rows or more tokens of the cache pool than the engine has."""

    def __init__(self, *, n_rows: int, n_tokens: int, max_rows: int, max_tokens: int):
        super().__init__(
            f"the request needs {n_rows} rows and {n_tokens} tokens: expected at most max_rows={max_rows} "
            f"and max_tokens={max_tokens}; shorten the prompt, lower max_new_tokens, or ask for fewer texts"
        )
        self.n_tokens, self.max_tokens = n_tokens, max_tokens


@dataclass(eq=False)
class EngineRequest:
    """A generation request and its progress, as `Engine.submit` returns it. Read `texts` once `is_done`."""

    tokens: list[int]
    config: GenerationConfig
    on_token: Callable[[int, int], None] | None = None
    """Called with the sample index and the token after each token; not for beam search."""
    with_log_probs: bool = False
    """Whether `texts` get the log-probability of each token; not for beam search."""
    n_top_log_probs: int = 0
    """How many of the most likely tokens of each step the sequences note; not for beam search."""
    make_constraint: Callable[[], TokenConstraint] | None = None
    """Makes the constraint of each sequence; None allows every token. Not for beam search."""
    rows: list[SequenceState] = field(default_factory=list)
    """The sequences of the request, one per sample; empty for beam search and while the request waits."""
    texts: list[GeneratedText] = field(default_factory=list)
    error: Exception | None = None
    """Why the request failed, if it did."""
    n_reused: int = 0
    """How many tokens of the prompt were not read, because the pool still held their keys and values."""
    is_canceled: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    on_cancel: Callable[["EngineRequest"], None] | None = None
    """Called by `cancel`. The engine sets it, to remove a waiting request from its queue."""

    @property
    def is_done(self) -> bool:
        """Whether the request is complete, has failed, or has left the engine after `cancel`."""
        return self.done.is_set()

    @property
    def n_rows(self) -> int:
        """How many sequences run at once for this request: beams or samples."""
        return max(self.config.num_beams, self.config.num_return_sequences)

    def cancel(self) -> None:
        """Stop the request: it leaves the queue at once, or the batch at the next step.

        `texts` then holds what was generated so far, except for beam search, which has no text before it ends.
        """
        self.is_canceled = True
        if self.on_cancel is not None:
            self.on_cancel(self)

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        self.error = error
        self.done.set()

    def settle(self) -> None:
        """Set `error` to that of a sequence that failed, if any did.

        If one failed, all ended, or the request was canceled, the request is over: set `texts` and `done`.
        """
        self.error = next((row.error for row in self.rows if row.error is not None), None)
        if self.error or self.is_canceled or all(row.reason is not None for row in self.rows):
            self.texts = [generated_text_of(row) for row in self.rows]
            self.done.set()

    def max_new_for(self, model: TextModel) -> int:
        """Return the limit of new tokens per sequence: the lower of the request's limit and the model's."""
        if isinstance(model, DecoderModel):
            return limit_new_tokens(model, len(self.tokens), self.config.max_new_tokens)
        return limit_new_tokens(model, 1, limit_by_source(self.config, len(self.tokens)))

    def size_for(self, model: TextModel) -> int:
        """Return how many tokens each sequence may need in the cache: the prompt or source, and the new tokens."""
        return len(self.tokens) + self.max_new_for(model)
