"""The answer to a call that needs an approval. Nothing that the calling client says approves it.

Only another credential can approve (gateway/approvals): the approval is for this call's digest, expires, and lets the
call run once, when it is repeated. What a client gets depends on what it can do:

    2026-07-28, shows URLs   a required input: the approval's URL. The client repeats the call when its user is back;
                             "accept" says no more than that, and the call then waits a while for the approval
    2025-11-25, shows URLs   the error URL_ELICITATION_REQUIRED with that URL; the client repeats the call
    other clients            a result with isError, the approval's id and its URL, for the model to show
"""

import asyncio
from collections.abc import Awaitable, Callable

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from gateway.client import ToolResult
from gateway.mcp.peer import Peer
from gateway.mcp.results import result_of

# Between two repetitions of a call whose user says that the approval is being answered; longer each time, as each one
# is judged and recorded.
_PAUSES_S = (0.5, 1, 2, 4, 8, 8)

Context = ServerRequestContext[object]
MakeCall = Callable[[], Awaitable[ToolResult]]


async def call_or_ask(
    ctx: Context, peer: Peer, params: CallToolRequestParams, call: MakeCall
) -> CallToolResult | InputRequiredResult:
    """Make a call and return its result, or what its approval requires of the client."""
    result = await call()
    if result.outcome != "waiting":
        return result_of(result)
    url = peer.approval_url(result.approval_id)
    if not url or not _opens_urls(ctx, peer):
        return result_of(result, url)
    answers = params.input_responses or {}
    if any(not isinstance(one, ElicitResult) or one.action != "accept" for one in answers.values()):
        # The user closed the request. The approval itself stays: it is not this user's to deny.
        return result_of(result, url)
    if answers:
        result = await _repeated(ctx, call, result)
        if result.outcome != "waiting":
            return result_of(result)
    asked = _elicitation(result, url)
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise UrlElicitationRequiredError([asked], f"the call waits for the approval {result.approval_id}: see {url}")
    # Without a state to return: what the approval is for is the call itself, which the client repeats.
    return InputRequiredResult(input_requests={result.approval_id: ElicitRequest(params=asked)})


def _elicitation(result: ToolResult, url: str) -> ElicitRequestURLParams:
    return ElicitRequestURLParams(
        message=f"The rule {result.rule} asks for an approval ({result.approval_id}): {result.reason}",
        url=url,
        elicitation_id=result.approval_id,
    )


def _opens_urls(ctx: Context, peer: Peer) -> bool:
    if peer.opens_urls is not None:
        return peer.opens_urls
    capabilities = ctx.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    return elicitation is not None and elicitation.url is not None


async def _repeated(ctx: Context, call: MakeCall, result: ToolResult) -> ToolResult:
    """Repeat a call until its approval is answered, for a while."""
    for number, pause_s in enumerate(_PAUSES_S, start=1):
        await ctx.session.report_progress(number, message=f"waiting for the approval {result.approval_id}")
        await asyncio.sleep(pause_s)
        result = await call()
        if result.outcome != "waiting":
            break
    return result
