"""The page on which raters compare or rate outputs, and its two addresses."""

from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import HTMLResponse
from pydantic import Field

from glassformer.serve.api_errors import install_error_handlers
from glassformer.serve.body_limit import BodyLimit
from glassformer.serve.live_page import SECURITY
from glassformer.serve.openai_schemas import RequestBody
from glassformer.serve.rating_session import HIGHEST, LOWEST, MAX_RATER, RatingSession

MAX_BODY = 10_000
RaterName = Annotated[str, Query(min_length=1, max_length=MAX_RATER)]


class RaterAnswer(RequestBody):
    """A rater's answer about an item: the place of the best output, null for a tie, or a rating for each place."""

    rater: Annotated[str, Field(min_length=1, max_length=MAX_RATER)]
    item: Annotated[int, Field(ge=0)]
    answer: int | list[int] | None


def make_rating_app(session: RatingSession) -> FastAPI:
    """Return the application for a session. It never shows a rater which system wrote an output."""
    app = FastAPI(title="Glassformer rate", docs_url=None, redoc_url=None)
    page = files("glassformer.serve").joinpath("rating_page.html").read_text(encoding="utf-8")
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY)

    def item_for(rater: str) -> dict[str, Any]:
        item = session.next_item(rater)
        found: dict[str, Any] = {"done": session.n_done(rater), "total": len(session.inputs), "mode": session.mode}
        if item is None:
            return {**found, "item": None}
        outputs = session.shown_outputs(rater, item)
        scale = [LOWEST, HIGHEST]
        return {**found, "item": item, "input": session.inputs[item], "outputs": outputs, "scale": scale}

    @app.get("/")
    async def show_page() -> HTMLResponse:
        """Return the page."""
        return HTMLResponse(page, headers=SECURITY)

    @app.get("/next")
    async def next_item(rater: RaterName) -> dict[str, Any]:
        """Return the next item of a rater; its `item` is null when all are done."""
        return item_for(rater)

    @app.post("/answer")
    def answer(body: RaterAnswer) -> dict[str, Any]:
        """Store an answer, and return the next item. Not a coroutine, because it waits for the disk."""
        session.answer(body.rater, body.item, body.answer)
        return item_for(body.rater)

    return app
