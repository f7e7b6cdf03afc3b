"""`glassformer serve`: an HTTP server for models."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.cli.flag_parser import UsageError
from glassformer.cli.run_options import ComputeOptions
from glassformer.serve.server_options import CPU_ROWS, BatchOptions, ListenOptions, RequestLimits

INSTALL = "pip install 'glassformer[serve]'"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    models: tuple[str, ...],
    *,
    listen: ListenOptions = ListenOptions(),  # noqa: B008
    limits: RequestLimits = RequestLimits(),  # noqa: B008
    batch: BatchOptions = BatchOptions(),  # noqa: B008
    compute: ComputeOptions = ComputeOptions(),  # noqa: B008
    parallel: str = "",
) -> None:
    """Serve models over HTTP, with OpenAI's API: existing clients work with http://127.0.0.1:8000/v1 as their base URL.

    glassformer serve my-model, and in another terminal: curl http://127.0.0.1:8000/v1/models

    Models that continue texts answer /v1/completions and, if they have a chat template, /v1/chat/completions. Encoders
    answer /v1/embeddings. Every model answers /v1/tasks/NAME, which takes what `run` takes: it translates, classifies,
    tags, summarizes, answers or fills in. Open http://127.0.0.1:8000/docs in a browser for all addresses and fields.

    Requests of all clients are computed together in one running batch. The answer to a request does not depend on other
    requests. /health, /ready and /metrics are for load balancers and Prometheus. SIGTERM or Ctrl-C lets running
    requests finish.

    Args:
        models: Models to serve: folders, or GGUF or llama2.c files. NAME=MODEL gives a model another name than that of
            its folder or file. The first is loaded at once, others when they are asked for.
        parallel: tensor=N divides one model, which generates text, among the N processes that torchrun started.
    """
    _check(listen, limits, batch)
    if not models:
        raise UsageError("MODELS is missing: glassformer serve --help shows how to use it")
    import_server("serve")
    from glassformer.serve.http_app import make_app
    from glassformer.serve.http_server import serve as serve_app
    from glassformer.serve.served_models import parse_models

    found = parse_models(models)
    if parallel:
        _serve_together(found, parallel, listen, limits, batch, compute)
        return
    app = make_app(
        found, partial(_load, compute), listen=listen, limits=limits, batch=batch, load_options=asdict(compute)
    )
    serve_app(app, listen, limits, on_start=_announcer(found, listen))


def _announcer(found: Mapping[str, Path], listen: ListenOptions) -> Callable[[str], None]:
    """Return a function that prints what is served at an address."""

    def say(address: str) -> None:
        print(f"serving {', '.join(found)} at {address}", flush=True)
        if not listen.quiet:
            print(f"API: {address}/v1   documentation: {address}/docs   Ctrl-C ends", file=sys.stderr)

    return say


def _load(compute: ComputeOptions, path: Path) -> Any:
    """Load a model, and say so if --compile on does nothing for it."""
    pipeline = compute.load(path)
    if compute.compile == "on" and pipeline.model.kind == "decoder":
        print(
            f"note: --compile on has no effect on {path}: texts of many requests are continued in batches of changing "
            "size, whose steps are not compiled",
            file=sys.stderr,
        )
    return pipeline


def _serve_together(
    found: Mapping[str, Path],
    parallel: str,
    listen: ListenOptions,
    limits: RequestLimits,
    batch: BatchOptions,
    compute: ComputeOptions,
) -> None:
    """Serve a model that is divided among processes. The first process answers, and all make the same steps."""
    if len(found) > 1:
        raise UsageError(f"--parallel {parallel} with {len(found)} models: expected one")
    from glassformer.decoding import Engine
    from glassformer.serve.http_app import make_app
    from glassformer.serve.http_server import serve as serve_app
    from glassformer.serve.served_models import engine_options
    from glassformer.serve.shared_engine import ALONE, LeadingEngine, ServerProcesses
    from glassformer.training.processes import SharedError

    (path,) = found.values()
    pipeline = compute.load(path, parallel=parallel)
    options = engine_options(pipeline, batch, limits)
    if options is None:
        raise SharedError(f"--parallel {parallel}: {path} generates no text: expected a model that does", 2)
    together = ServerProcesses()
    # A GPU's default depends on its free memory.
    size = min(together.processes.gather(options["max_tokens"]))
    batch = replace(batch, max_rows=options["max_rows"], cache_tokens=size)
    if not together.is_leader:
        together.follow(Engine(pipeline.model, **{**options, "max_tokens": size}))
        return
    together.watch()
    engine = partial(LeadingEngine, send=together.send, on_fault=together.end)
    try:
        app = make_app(
            found,
            lambda path: pipeline,
            listen=listen,
            limits=limits,
            batch=batch,
            make_engine=engine,
            no_jobs=f"this needs the whole model in one process: {ALONE}",
        )
        serve_app(app, listen, limits, on_start=_announcer(found, listen))
    finally:
        together.stop()


def import_server(verb: str) -> None:
    """Raise an ImportError with the install command if a package of the server is missing."""
    try:
        import fastapi  # noqa: F401
        import llguidance  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(f"glassformer {verb} needs the package {error.name}: install it with {INSTALL}") from error


def _check(listen: ListenOptions, limits: RequestLimits, batch: BatchOptions) -> None:
    """Raise a UsageError for a value out of range, before anything is loaded."""
    if not 0 <= listen.port <= 65535:
        raise UsageError(f"--port {listen.port}: expected 0 to 65535")
    if listen.host not in LOOPBACK and not listen.all_keys():
        print(
            f"glassformer: --host {listen.host} without --api-key: every client that reaches it may use the models",
            file=sys.stderr,
        )
    if any(not key.isascii() or not key.isprintable() or " " in key for key in listen.all_keys()):
        raise UsageError("--api-key: expected printable ASCII characters without spaces")
    whole = {
        "--max-queue": limits.max_queue,
        "--max-body": limits.max_body,
        "--max-tokens": limits.max_tokens,
        "--default-tokens": limits.default_tokens,
        "--max-inputs": limits.max_inputs,
    }
    for flag, value in whole.items():
        if value < 1:
            raise UsageError(f"{flag} {value}: expected 1 or more")
    for flag, value in (("--max-rows", batch.max_rows), ("--cache-tokens", batch.cache_tokens)):
        if value < 0:
            raise UsageError(f"{flag} {value}: expected 1 or more, or 0 for the default")
    rows = batch.max_rows or CPU_ROWS
    if 0 < batch.cache_tokens < rows:
        raise UsageError(f"--cache-tokens {batch.cache_tokens}: expected at least --max-rows {rows}")
    if limits.rate < 0:
        raise UsageError(f"--rate {limits.rate}: expected 0 or more")
    for flag, seconds in (("--timeout", limits.timeout), ("--drain", limits.drain)):
        if not 0 < seconds < float("inf"):
            raise UsageError(f"{flag} {seconds:g}: expected more than 0")
    if not 0 <= batch.keep_loaded < float("inf"):
        raise UsageError(f"--keep-loaded {batch.keep_loaded:g}: expected 0 or more")
