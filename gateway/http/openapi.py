"""GET /openapi.json: the description of the JSON face, made from the protos by deploy/openapi.py."""

from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_DOCUMENT = Path(__file__).with_name("openapi.json")


def openapi_routes() -> Sequence[Route]:
    """Return the route of the document, which needs no credential."""
    content = _DOCUMENT.read_bytes()

    async def document(_request: Request) -> Response:
        return Response(content, media_type="application/json")

    return [Route("/openapi.json", document)]
