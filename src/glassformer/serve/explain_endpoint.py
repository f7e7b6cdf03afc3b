"""`/v1/explain/{model}`, `/v1/attention/{model}` and `/explore`: the numbers behind an answer, and their page."""

import asyncio
import functools
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field

from glassformer.inspect.explain_options import PARTS, ExplainOptions
from glassformer.inspect.explanation import build_explanation
from glassformer.inspect.page_file import page_html
from glassformer.serve.access_log import note_fact
from glassformer.serve.api_errors import bad_value
from glassformer.serve.embeddings_endpoint import check_queue
from glassformer.serve.event_stream import answer_unless_gone
from glassformer.serve.live_page import SECURITY
from glassformer.serve.openai_schemas import STRICT, RequestBody
from glassformer.serve.server_state import ServerState, state_of

router = APIRouter(tags=["Explain"])
QUICK_PARTS = ("attention", "lens", "next", "beam")
"""The parts of an explanation that are computed unless the request names others."""
MAX_TEXT = 20_000
"""The most characters of a text."""
MAX_WRITTEN = 128
"""The most tokens that a model writes for an explanation."""
PAGE_SECURITY = {
    **SECURITY,
    "Content-Security-Policy": SECURITY["Content-Security-Policy"].replace(
        "connect-src", "img-src data: blob:; connect-src"
    ),
}


class ExplainSettings(BaseModel):
    """Settings of an explanation; see `ExplainOptions`."""

    model_config = STRICT
    target: Annotated[str, Field(max_length=MAX_TEXT)] | None = Field(
        None, description="The text of the decoder, instead of what the model writes."
    )
    max_tokens: Annotated[int, Field(ge=1, le=MAX_WRITTEN)] = Field(20, description="The most tokens that it writes.")
    beam: Annotated[int, Field(ge=1, le=16)] | None = Field(None, description="Beam width; 1 is greedy search.")
    sample: bool = Field(False, description="Draw tokens at random, by temperature, top_k and top_p.")
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    ablate: Annotated[list[str], Field(max_length=256)] = Field(
        [], description="Parts to switch off, such as encoder.layers.0.self_attn.head.3; numbers count from 0."
    )
    parts: list[str] | None = Field(None, description=f"Parts to compute: {', '.join(PARTS)}.")
    position: Annotated[int, Field(ge=0)] | None = Field(None, description="The written token to attribute.")


class ExplainRequest(RequestBody):
    """A text for a model to explain."""

    model_config = STRICT
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    options: ExplainSettings = Field(default_factory=lambda: ExplainSettings.model_validate({}))


@router.post("/v1/explain/{name:path}", summary="Every number from token to prediction, for one text")
async def explain(name: str, body: ExplainRequest, request: Request) -> JSONResponse:
    """Explain what a model does with a text."""
    server = state_of(request)
    return JSONResponse(await answer_unless_gone(request, _explain(server, name, body, request), server.limits.timeout))


async def _explain(server: ServerState, name: str, body: ExplainRequest, request: Request) -> dict[str, Any]:
    given = body.options.model_dump(exclude={"parts"})
    if body.options.beam is not None and body.options.beam > server.batch.max_rows:
        raise bad_value("beam", body.options.beam, f"at most {server.batch.max_rows} (--max-rows of the server)")
    parts = QUICK_PARTS if body.options.parts is None else tuple(body.options.parts)
    options = ExplainOptions.from_dict({**given, "parts": parts})
    async with server.shelf.lend(name) as model:
        note_fact(request.scope, model=name)
        pipeline, wholes = model.pipeline, server.whole_outputs
        explained = functools.partial(build_explanation, pipeline, body.text, options, name=name, wholes=wholes)
        return await _compute(server, explained)


class AttentionRowRequest(RequestBody):
    """One row of an attention map; see `AttentionRows`."""

    model_config = STRICT
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    attention: Annotated[str, Field(max_length=200)] = Field(description="Such as decoder.layers.1.self_attn.")
    query: Annotated[int, Field(ge=0)] = Field(description="Index of the token that attends.")
    target_ids: Annotated[list[int], Field(max_length=MAX_TEXT)] | None = Field(
        None, description="All tokens that the decoder reads, as text.target.ids of the explanation."
    )
    ablate: Annotated[list[str], Field(max_length=256)] = Field([], description="Parts that are switched off.")


@router.post("/v1/attention/{name:path}", summary="The exact row of an attention map, for all heads")
async def attention_row(name: str, body: AttentionRowRequest, request: Request) -> JSONResponse:
    """Return one row of attention weights, exact where the explanation of a long text has a reduced map."""
    server = state_of(request)
    return JSONResponse(await answer_unless_gone(request, _row(server, name, body, request), server.limits.timeout))


async def _row(server: ServerState, name: str, body: AttentionRowRequest, request: Request) -> dict[str, Any]:
    async with server.shelf.lend(name) as model:
        note_fact(request.scope, model=name)
        pipeline, rows = model.pipeline, server.attention_rows
        return await _compute(
            server,
            lambda: rows.row(
                pipeline, body.text, body.attention, body.query, target_ids=body.target_ids, without=body.ablate
            ),
        )


async def _compute(server: ServerState, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call a function in the computing thread, unless too many requests wait for it."""
    check_queue(server)
    job = server.compute.answer(object(), [None], lambda _: [compute()])
    try:
        (found,) = await asyncio.wrap_future(job)
    finally:
        job.cancel()
    return dict(found)


@functools.cache
def _page() -> str:
    return page_html(None)


@router.get("/explore", include_in_schema=False)
async def show_explorer() -> HTMLResponse:
    """Return the page, which asks this server for its explanations."""
    return HTMLResponse(_page(), headers=PAGE_SECURITY)
