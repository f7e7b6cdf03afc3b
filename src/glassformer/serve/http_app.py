"""The application: endpoints, middleware, and what starts and ends with it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware

from glassformer.base.version import __version__
from glassformer.decoding import Engine
from glassformer.serve import (
    chat_endpoint,
    completions_endpoint,
    embeddings_endpoint,
    explain_endpoint,
    health_endpoint,
    live_page,
    models_endpoint,
    tasks_endpoint,
)
from glassformer.serve.access_log import AccessLog
from glassformer.serve.api_errors import install_error_handlers
from glassformer.serve.api_keys import DOCS_FILES, ApiKeys, KeyCheck
from glassformer.serve.batch_defaults import with_rows
from glassformer.serve.body_limit import BodyLimit
from glassformer.serve.compute_thread import ComputeThread
from glassformer.serve.direct_route import DirectEndpoint, DirectRoute
from glassformer.serve.openai_schemas import ChatRequest, CompletionRequest
from glassformer.serve.rate_limit import RateLimit
from glassformer.serve.served_models import ModelShelf, check_models
from glassformer.serve.server_metrics import ServerMetrics
from glassformer.serve.server_options import BatchOptions, ListenOptions, RequestLimits
from glassformer.serve.server_state import ServerState

ENDPOINTS = (
    models_endpoint,
    chat_endpoint,
    completions_endpoint,
    embeddings_endpoint,
    tasks_endpoint,
    explain_endpoint,
    health_endpoint,
    live_page,
)

DIRECT_ENDPOINTS = {
    "/v1/chat/completions": DirectEndpoint(ChatRequest, chat_endpoint.create_chat_completion),
    "/v1/completions": DirectEndpoint(CompletionRequest, completions_endpoint.create_completion),
}


def make_app(
    models: Mapping[str, Path],
    load: Callable[[Path], Any],
    *,
    listen: ListenOptions,
    limits: RequestLimits,
    batch: BatchOptions,
    make_engine: Callable[..., Engine] = Engine,
    no_jobs: str = "",
    load_options: Mapping[str, Any] | None = None,
) -> FastAPI:
    """Return the application for some models. The files of all are checked, and the first one is loaded.

    Args:
        models: The path of each model by its name.
        load: Returns the pipeline of a path.
        make_engine: Makes the engine of a model that generates text.
        no_jobs: Why the server only generates text; empty if it does all else, too.
        load_options: The options of `load`, if engines may run in separate processes.
    """
    check_models(models, batch.keep_loaded)
    metrics = ServerMetrics()
    compute = ComputeThread(metrics, no_jobs)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        shelf = ModelShelf(models, load, compute, batch, limits, make_engine, load_options)
        server = ServerState(shelf, compute, metrics, limits, batch)
        app.state.server = server
        first = next(iter(models))
        shelf.put(shelf.models[first], first_pipeline)
        compute.start()
        server.is_ready = True
        yield
        server.is_ready = False
        server.close()

    first_pipeline = load(next(iter(models.values())))  # here, so that the command reports its errors
    batch = with_rows(batch, next(first_pipeline.model.parameters()).device)
    app = FastAPIOffline(  # FastAPI's own /docs loads its scripts from a public server
        title="Glassformer",
        version=__version__,
        summary="OpenAI's API for local models, and the tasks of models that Glassformer trained.",
        lifespan=lifespan,
        redoc_url=None,
        static_url=DOCS_FILES,
    )
    for endpoint in ENDPOINTS:
        app.include_router(endpoint.router)
    install_error_handlers(app)
    # The last one that is added comes first.
    app.add_middleware(DirectRoute, endpoints=DIRECT_ENDPOINTS)
    app.add_middleware(BodyLimit, max_bytes=limits.max_body)
    app.add_middleware(KeyCheck, keys=ApiKeys(listen.all_keys()), rate=RateLimit(limits.rate))
    if listen.cors:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(listen.cors), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    app.add_middleware(AccessLog, metrics=metrics, log_prompts=listen.log_prompts)
    return app
