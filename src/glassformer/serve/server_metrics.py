"""The server's counters and timings, in the format of Prometheus."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """The counters of one server. Labels are addresses of the API and statuses, so that their number is bounded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of: Any = {"registry": self.registry, "namespace": "glassformer"}
        self._requests = Counter("requests", "HTTP requests that were answered", ("path", "status"), **of)
        self._seconds = Histogram("request_seconds", "Time to answer a request", ("path",), buckets=_SECONDS, **of)
        self._first = Histogram("first_token_seconds", "Time to the first token", buckets=_SECONDS, **of)
        self._rows = Histogram("batch_rows", "Texts that a step advances", buckets=_ROWS, **of)
        self._written = Counter("generated_tokens", "Tokens that were generated", **of)
        self._read = Counter("prompt_tokens", "Tokens of prompts", **of)
        self._cached = Counter("cached_tokens", "Tokens of prompts whose keys and values were still in the cache", **of)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed when the metrics are read."""
        gauge = Gauge(name, about, registry=self.registry, namespace="glassformer")
        gauge.set_function(value)

    def note_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request. `path` is the address with its parameters left open, such as /v1/models/{name}."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def note_step(self, n_rows: int) -> None:
        """Note the number of texts that a step of an engine advances."""
        if n_rows:
            self._rows.observe(n_rows)

    def note_first_token(self, seconds: float) -> None:
        """Note how long a request waited for its first token."""
        self._first.observe(seconds)

    def note_tokens(self, count: int) -> None:
        """Count generated tokens."""
        self._written.inc(max(count, 0))

    def note_prompt(self, n_tokens: int, n_cached: int) -> None:
        """Count the tokens of a prompt, and those of them that the cache still held."""
        self._read.inc(n_tokens)
        self._cached.inc(n_cached)

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return generate_latest(self.registry)
