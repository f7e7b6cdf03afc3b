"""`/`: a page to talk to the models, in one file without external requests."""

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

router = APIRouter()
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""The page loads nothing from other addresses and cannot be put into a frame. It inserts texts as text, not as HTML."""
PAGE = files("glassformer.serve").joinpath("live_page.html").read_text(encoding="utf-8")


@router.get("/", include_in_schema=False)
async def show_page() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(PAGE, headers=SECURITY)
