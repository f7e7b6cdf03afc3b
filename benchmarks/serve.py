"""Measure a server under load, beside other servers with OpenAI's API, the engine alone and offline generation.

    python benchmarks/serve.py SmolLM2.gguf --clients 1 8 32 --out benchmarks/results/serve-NAME.json \
        --peer "llama.cpp=python -m llama_cpp.server --model SmolLM2.gguf --port {port} --n_ctx 4096" \
        --peer "transformers=transformers serve --port {port} FOLDER" --peer-model "transformers=FOLDER"

Each client sends one chat after the other as a stream, and notes when each piece of the answer arrives. `glassformer
serve` and the peers run at the same time; while one is measured the others wait. They take turns, and the table shows
the median of the rounds. A peer is a command in which {port} stands for a free port on this machine. Clients ask for
the first model that a server lists, unless --peer-model names another. What a peer counts as a token is what its
`usage` says, or else the number of pieces. Offline, `generate` writes the same answers in one batch per turn, of all
clients together.

A load test must not measure itself: the clients are spread over --client-processes, and the notes of a result say how
much processor time they took for each request of our server.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from serve_clients import QUESTIONS, Load, ServerAddress, run_share

from glassformer.bench.result_file import check_new, markdown_table, write_result

COLUMNS = [
    "clients",
    "server",
    "tokens/s",
    "of the engine alone",
    "first token, p50 / p99, ms",
    "between tokens, p50 / p99, ms",
]
START_SECONDS = 300
CLIENT_PROCESSES = min(4, max(1, (os.cpu_count() or 1) // 4))
"""The default of --client-processes: few cores are left to the server."""


class ServerProcess:
    """A server with OpenAI's API that runs while the context is open, and the `model` that clients ask it for."""

    def __init__(self, name: str, command: str, model: str = ""):
        self.name = name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._command = shlex.split(command.replace("{port}", str(self.port)))
        self.model = model
        """Empty until the server has listed its models, unless the caller names one."""

    def __enter__(self) -> "ServerProcess":
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=self._log)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None:
                with self._log:
                    self._log.seek(0)
                    end = self._log.read()[-2000:].decode(errors="replace")
                code = self._process.returncode
                raise SystemExit(f"{self.name} ended with code {code}: {shlex.join(self._command)}\n{end}")
            if time.monotonic() > until:
                self._process.kill()
                raise SystemExit(f"{self.name} did not answer within {START_SECONDS} s: {shlex.join(self._command)}")
            time.sleep(0.2)
        return self

    def _answers(self) -> bool:
        """Return whether the server answers and its model is known."""
        address = f"http://127.0.0.1:{self.port}/v1/models"
        with suppress(OSError, ValueError, LookupError):
            try:
                with urllib.request.urlopen(address, timeout=5) as response:
                    self.model = self.model or json.loads(response.read())["data"][0]["id"]
            except urllib.error.HTTPError:  # a server that cannot list its models
                return bool(self.model)
            return True
        return False

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    @property
    def address(self) -> ServerAddress:
        """The address for clients, also those in other processes."""
        return ServerAddress(self.name, self.port, self.model)

    def resident(self) -> int:
        """Return the resident memory of the process in bytes (Linux)."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


def run_clients(
    processes: Executor, n_processes: int, server: ServerProcess, n_clients: int, n_requests: int, max_tokens: int
) -> Load:
    """Let all clients ask at the same time, spread over the processes, and return what they noted."""
    shares = [range(first, n_clients, n_processes) for first in range(min(n_processes, n_clients))]
    work = partial(run_share, server.address, n_requests=n_requests, max_tokens=max_tokens)
    load = Load()
    for found in processes.map(work, shares):
        load.add(found)
    return load


def prompts_of(pipeline: Any, n_clients: int, turn: int) -> list[list[int]]:
    """Return the token ids of the chats that the clients send in this turn."""
    from glassformer.pipelines.generator import as_messages

    return [pipeline.answer_to(as_messages(QUESTIONS[(number + turn) % len(QUESTIONS)])) for number in range(n_clients)]


def run_offline(pipeline: Any, n_clients: int, n_requests: int, max_tokens: int) -> Load:
    """Let `generate` write the same answers, those of a turn in one batch."""
    from glassformer.decoding import GenerationConfig, generate

    config = GenerationConfig(max_new_tokens=max_tokens, eos_token_id=pipeline.tokenizer.ends)
    load = Load(begin=time.perf_counter())
    for turn in range(n_requests):
        prompts = prompts_of(pipeline, n_clients, turn)
        found = generate(pipeline.model, prompts, config, end=pipeline.end, batch_tokens=10**6)
        load.n_tokens += sum(len(texts[0].tokens) for texts in found)
    load.end = time.perf_counter()
    return load


def run_engine(engine: Any, pipeline: Any, n_clients: int, n_requests: int, max_tokens: int) -> Load:
    """Let the engine write the same answers without a server."""
    from glassformer.decoding import GenerationConfig

    config = GenerationConfig(max_new_tokens=max_tokens, eos_token_id=pipeline.tokenizer.ends)
    load = Load(begin=time.perf_counter())
    for turn in range(n_requests):
        requests = [engine.submit(prompt, config) for prompt in prompts_of(pipeline, n_clients, turn)]
        engine.run()
        load.n_tokens += sum(len(request.texts[0].tokens) for request in requests)
    load.end = time.perf_counter()
    return load


def table_row(n_clients: int, name: str, rounds: Sequence[Load], engine_rate: float | None) -> list[str | float]:
    """Return the row of one server: the median rate, and quantiles of all times."""
    rate = statistics.median(load.rate for load in rounds)
    share = "" if not engine_rate else f"{rate / engine_rate:.2f}"
    times = [[seconds for load in rounds for seconds in getattr(load, kind)] for kind in ("first", "gaps")]
    cells = [" / ".join(f"{1000 * quantile(values, share):.0f}" for share in (0.5, 0.99)) for values in times]
    return [n_clients, name, f"{rate:.1f}", share, *(cells if times[0] else ["", ""])]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


ALONE, OURS = "the engine alone", "glassformer"
LOAD_OPTIONS = "device", "dtype", "quantize"
"""Options of `glassformer serve` that these share with it."""


def main() -> None:
    """Measure all servers with each number of clients, print the table, and write the result file if it is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a decoder with a chat template")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=2, help="requests of each client in a round")
    parser.add_argument("--tokens", type=int, default=64, help="the most tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client-processes", type=int, default=CLIENT_PROCESSES, help="processes of the clients")
    parser.add_argument("--serve", default="", help="more options of glassformer serve, such as --quantize int8")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND of another server")
    parser.add_argument("--peer-model", action="append", default=[], help="NAME=MODEL that clients ask this peer for")
    parser.add_argument("--no-engine", action="store_true", help="leave the engine alone out")
    parser.add_argument("--out", type=Path, help="new file of results")
    options = parser.parse_args()
    if options.out is not None:
        check_new(options.out)
    ours = (
        f"{shlex.quote(sys.executable)} -m glassformer serve {shlex.quote(str(options.model))} --port {{port}} --quiet"
    )
    commands = {OURS: f"{ours} {options.serve}"}
    for peer in options.peer:
        name, _, command = peer.partition("=")
        commands[name] = command
    alone: dict[str, Callable[[int, int, int], Load]] = {}
    if not options.no_engine:
        from glassformer.decoding import Engine
        from glassformer.pipelines.load import load
        from glassformer.serve.batch_defaults import cache_tokens_for
        from glassformer.serve.server_options import BatchOptions

        words = shlex.split(options.serve)
        given = {name: words[words.index(f"--{name}") + 1] for name in LOAD_OPTIONS if f"--{name}" in words}
        pipeline: Any = load(options.model, **given)  # type: ignore[arg-type]
        batch = BatchOptions(max_rows=max(32, *options.clients))
        room = cache_tokens_for(batch, pipeline.model)
        engine = Engine(
            pipeline.model, end=pipeline.end, tokenizer=pipeline.tokenizer, max_rows=batch.max_rows, max_tokens=room
        )
        alone = {
            ALONE: partial(run_engine, engine, pipeline),
            "`generate` in one batch": partial(run_offline, pipeline),
        }
        for measure in alone.values():
            measure(max(options.clients), 1, options.tokens)
    found: dict[tuple[int, str], list[Load]] = {}
    with ExitStack() as stack:
        models = dict(item.split("=", 1) for item in options.peer_model)
        servers = [
            stack.enter_context(ServerProcess(name, command, models.get(name, "")))
            for name, command in commands.items()
        ]
        processes = stack.enter_context(
            ProcessPoolExecutor(options.client_processes, multiprocessing.get_context("spawn"))
        )
        run = partial(run_clients, processes, options.client_processes)
        for server in servers:  # so that none is measured while it, or a client's process, is being prepared
            run(server, max(options.client_processes, *options.clients), 1, options.tokens)
        for number in range(options.rounds):
            for n_clients in options.clients:
                sizes = n_clients, options.requests, options.tokens
                for name, measure in alone.items():
                    found.setdefault((n_clients, name), []).append(measure(*sizes))
                for server in servers:
                    one = run(server, *sizes)
                    found.setdefault((n_clients, server.name), []).append(one)
                    print(number, n_clients, server.name, f"{one.rate:.1f} tokens/s", sep="\t", flush=True)
    rows = []
    for (n_clients, name), rounds in found.items():
        engine_rounds = found.get((n_clients, ALONE))
        rate = None if engine_rounds is None else statistics.median(load.rate for load in engine_rounds)
        rows.append(table_row(n_clients, name, rounds, rate))
    n_answers = options.rounds * options.requests * sum(options.clients)
    used = sum(load.cpu_seconds for (_, name), loads in found.items() for load in loads if name == OURS) / n_answers
    notes = [
        f"{options.model.name}, {options.requests} answers of at most {options.tokens} tokens for each client, "
        f"median of {options.rounds} rounds in turns.",
        f"The clients of our server took {1000 * used:.1f} ms of processor time for each answer, in "
        f"{options.client_processes} process{'es' if options.client_processes > 1 else ''}.",
    ]
    print(markdown_table(COLUMNS, rows), *notes, sep="\n")
    if options.out is not None:
        write_result(options.out, title="Servers under load", columns=COLUMNS, rows=rows, notes=notes)


if __name__ == "__main__":
    main()
