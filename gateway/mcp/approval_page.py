"""What the URL of an approval shows: how an approver answers it. It reads nothing, and needs no credential."""

import html
import re

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gateway.errors import NotFound

PATH = "/approvals"
_ID = re.compile(r"apr_[0-9A-Za-z_-]{1,64}")
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Approval {id}</title>
<h1>A tool call waits for the approval {id}</h1>
<p>Someone with an approver's key answers it. With AIRLOCK_ADDRESS and AIRLOCK_API_KEY set:</p>
<pre>airlock approvals show {id}
airlock approvals allow {id}
airlock approvals deny {id} --message "why not"</pre>
<p>Then go back to your client and continue: it makes the call again, which runs once it is approved.</p>
</html>
"""


def approval_route() -> Route:
    """Return the route of the page."""
    return Route(f"{PATH}/{{approval_id}}", _page, methods=["GET"])


async def _page(request: Request) -> Response:
    approval_id = request.path_params["approval_id"]
    if _ID.fullmatch(approval_id) is None:
        raise NotFound("no approval has such an id: they begin with apr_")
    return HTMLResponse(_PAGE.format(id=html.escape(approval_id)), headers=_HEADERS)
