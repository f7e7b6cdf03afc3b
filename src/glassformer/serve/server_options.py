"""The settings of a server: where it listens, what a request may ask for, and what is computed together."""

import os
from dataclasses import dataclass
from typing import Literal

CPU_ROWS = 32
"""The default of `BatchOptions.max_rows` on a CPU, where steps of more rows are not replayed from C++."""
KEYS_VARIABLE = "GLASSFORMER_API_KEYS"
"""The environment variable with more API keys, separated by commas. Other users of a machine cannot see it."""


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Where to listen, and who may ask."""

    host: str = "127.0.0.1"
    """Address to listen on. The default is this machine only; 0.0.0.0 is every network, which needs an --api-key."""
    port: int = 8000
    """Port to listen on; 0 is any free one."""
    api_key: tuple[str, ...] = ()
    """Keys of clients, who send one as `Authorization: Bearer KEY`. The environment variable GLASSFORMER_API_KEYS may
    hold more, separated by commas. Without keys every client that reaches the server may use it."""
    cors: tuple[str, ...] = ()
    """Origins of web pages that may use the server from a browser, such as https://example.org; * is all of them."""
    log_prompts: bool = False
    """Log the body of each request, too. By default no text of a client is logged."""
    quiet: bool = False
    """Log no requests."""

    def all_keys(self) -> tuple[str, ...]:
        """Return the keys of the command line and of the environment."""
        more = os.environ.get(KEYS_VARIABLE, "").split(",")
        return tuple(dict.fromkeys(key for key in (*self.api_key, *(key.strip() for key in more)) if key))


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """The limits of a request."""

    max_queue: int = 256
    """The most requests that wait for a model. Further ones get status 429."""
    max_body: int = 1_000_000
    """The most bytes of a request's body."""
    max_tokens: int = 4096
    """The most tokens that a request may ask for."""
    default_tokens: int = 512
    """The most tokens of an answer if the client does not set max_tokens in a chat."""
    max_inputs: int = 256
    """The most texts in one request for completions, embeddings or a task."""
    timeout: float = 600.0
    """The most seconds that a request may take, waiting included. A client may take 30 of them to send its request."""
    rate: int = 0
    """The most requests per minute of a client: of a key, or of an address if there are no keys; 0 is no limit."""
    drain: float = 60.0
    """After SIGTERM, wait at most this many seconds for running requests to finish."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The size of the running batch, and the models that stay in memory."""

    max_rows: int = 0
    """The most texts that a model writes at a time. Further requests wait. (default: 32; on a GPU 128)"""
    cache_tokens: int = 0
    """Tokens for which each model has a cache of keys and values: the prompts and answers of all running requests.
    (default: 16384; on a GPU 4096 for each row, in at most a third of the memory that is free)"""
    keep_loaded: float = 0.0
    """The most gigabytes of model files that are loaded at a time, if there are several models. A model is loaded when
    it is asked for, and models that are not in use are unloaded for it. 0 keeps every model loaded."""
    engine_process: Literal["auto", "on", "off"] = "auto"
    """Whether a model that continues texts is computed in a separate process, so that HTTP does not slow it down. The
    process loads the model again. auto does so on a GPU, for models of at most 4 GB."""
