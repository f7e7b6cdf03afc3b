"""The clients of a load test (`serve.py`): they send chats as streams, and note when the pieces of answers arrive.

The processes that run the clients start quickly, because this module imports nothing of Glassformer.
"""

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

QUESTIONS = (
    "Tell me a story about a cat and a saw.",
    "What is the capital of France, and what is it known for?",
    "Write a letter to a friend about the weather in your town.",
    "Explain how a bicycle stays upright, in simple words.",
)
REQUEST_SECONDS = 600


@dataclass
class Load:
    """What clients have noted in one round."""

    n_tokens: int = 0
    begin: float = float("inf")
    end: float = 0.0
    """When the first client began and the last one ended, by a clock that all processes share."""
    cpu_seconds: float = 0.0
    """The processor time of the clients."""
    first: list[float] = field(default_factory=list)
    """Seconds to the first piece of each answer."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between two pieces of an answer."""

    @property
    def seconds(self) -> float:
        """How long the round took."""
        return max(0.0, self.end - self.begin)

    @property
    def rate(self) -> float:
        """Tokens per second of all clients together."""
        return self.n_tokens / self.seconds if self.seconds else 0.0

    def add(self, other: "Load") -> None:
        """Add what clients in another process have noted at the same time."""
        self.n_tokens += other.n_tokens
        self.begin, self.end = min(self.begin, other.begin), max(self.end, other.end)
        self.cpu_seconds += other.cpu_seconds
        self.first += other.first
        self.gaps += other.gaps


class ServerAddress(NamedTuple):
    """The name and port of a server, and the model that clients ask it for."""

    name: str
    port: int
    model: str


async def ask(server: ServerAddress, text: str, max_tokens: int, load: Load) -> None:
    """Send one chat, read its answer as a stream, and note the times."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    head = f"Host: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    last, n_pieces, n_tokens, rest = time.perf_counter(), 0, None, b""
    try:
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n".encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{server.name} answered {status.decode().strip()}: {(await reader.read(500)).decode()}")
        while received := await reader.read(1 << 16):  # not line by line, which would take several times as long
            now = time.perf_counter()
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("usage"):
                    n_tokens = event["usage"].get("completion_tokens")
                if any(choice.get("delta", {}).get("content") for choice in event.get("choices", [])):
                    (load.gaps if n_pieces else load.first).append(now - last)
                    n_pieces, last = n_pieces + 1, now
    finally:
        writer.close()
    load.n_tokens += n_pieces if n_tokens is None else n_tokens


async def ask_in_turns(server: ServerAddress, numbers: Iterable[int], n_requests: int, max_tokens: int) -> Load:
    """Let the clients with these numbers ask at the same time, each one question after the other."""
    load = Load(begin=time.perf_counter())
    used = time.process_time()

    async def client(number: int) -> None:
        for turn in range(n_requests):
            await ask(server, QUESTIONS[(number + turn) % len(QUESTIONS)], max_tokens, load)

    async with asyncio.timeout(REQUEST_SECONDS):
        await asyncio.gather(*map(client, numbers))
    load.end, load.cpu_seconds = time.perf_counter(), time.process_time() - used
    return load


def run_share(server: ServerAddress, numbers: Iterable[int], n_requests: int, max_tokens: int) -> Load:
    """Run some of the clients in this process."""
    return asyncio.run(ask_in_turns(server, numbers, n_requests, max_tokens))
