"""When generation on a GPU uses the attention of cuDNN: for long prompts only.

On Hopper GPUs torch prefers cuDNN. It makes a plan for every new shape, which takes 40 to 70 ms on an H200: longer than
to read a prompt, and prompts have many lengths. Its attention itself takes about two thirds of the time of torch's
flash attention. That pays off for a prompt of tens of thousands of tokens, in which attention takes longest.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import torch

LONG_PROMPT = 16_384
"""The length of a prompt, in tokens, from which on cuDNN is used. With 32,000 tokens it saves 5 ms per layer."""
_IS_ALLOWED = ContextVar("_IS_ALLOWED", default=False)
"""Whether cuDNN was enabled when `without_cudnn` began."""


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Return a context manager in which attention does not use cuDNN, except within `attention_for_prompt`."""
    token = _IS_ALLOWED.set(_IS_ALLOWED.get() or _is_enabled())
    try:
        with _cudnn(False):
            yield
    finally:
        _IS_ALLOWED.reset(token)


def attention_for_prompt(n_tokens: int) -> AbstractContextManager[None]:
    """Return a context manager in which a prompt of `n_tokens` tokens is read with the attention that suits it."""
    return _cudnn(n_tokens >= LONG_PROMPT and _IS_ALLOWED.get())


@contextmanager
def _cudnn(is_enabled: bool) -> Iterator[None]:
    before = _is_enabled()
    torch.backends.cuda.enable_cudnn_sdp(is_enabled)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _is_enabled() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]
