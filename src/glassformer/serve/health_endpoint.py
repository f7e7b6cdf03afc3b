"""`/health`, `/ready` and `/metrics`: what a load balancer and a monitoring system ask, by GET or HEAD."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from glassformer.serve.api_errors import ApiError
from glassformer.serve.server_state import state_of

router = APIRouter(tags=["Operation"])
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.head("/health", include_in_schema=False)
@router.get("/health", summary="Is the process alive?")
async def health(request: Request) -> JSONResponse:
    """Return status 200 as long as the process answers and its computing thread lives."""
    if not state_of(request).compute.is_alive():
        raise ApiError(503, "the computing thread has ended: restart the server")
    return JSONResponse({"status": "ok"})


@router.head("/ready", include_in_schema=False)
@router.get("/ready", summary="Does the server take requests?")
async def ready(request: Request) -> JSONResponse:
    """Return status 200 if the first model is loaded, no model has failed and the queue is not full, else 503."""
    server = state_of(request)
    if not server.is_ready:
        raise ApiError(503, "the server is starting or stopping: ask again later")
    if server.is_down():
        raise ApiError(503, "a model has failed and is being prepared again: ask again later")
    if server.n_waiting() >= server.limits.max_queue:
        raise ApiError(503, f"{server.n_waiting()} requests are waiting: ask again later")
    return JSONResponse({"status": "ready"})


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", summary="Metrics for Prometheus")
async def metrics(request: Request) -> Response:
    """Return the server's metrics as Prometheus reads them."""
    return Response(state_of(request).metrics.text(), media_type=METRICS_TYPE)
