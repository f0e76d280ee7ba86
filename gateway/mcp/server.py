"""The handlers of the protocol's methods. Each calls the gateway with the credential of its request."""

import codecs
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from agent.cancellation import in_own_task
from gateway.client import ToolResult
from gateway.errors import AirlockError
from gateway.mcp.asking import call_or_ask
from gateway.mcp.peer import Peer
from gateway.mcp.resources import list_resources, list_templates, read_resource
from gateway.mcp.results import error_of, tool_of
from gateway.support.version import airlock_version

log = structlog.get_logger(__name__)
_INSTRUCTIONS = (
    "The tools work in one sandbox, with its files under /workspace. An operator's policy judges each call: a denied "
    "call names the rule, and repeating it does not help. A call that waits for an approval has not run; make the same "
    "call again once it is approved."
)
_CANCELLED = -32800

Context = ServerRequestContext[Any]
PeerOf = Callable[[Context], Peer]
P = TypeVar("P")
R = TypeVar("R")


def make_server(peer_of: PeerOf) -> Server[Any]:
    """Return the server; `peer_of` returns who makes a request."""

    @_answered
    async def list_tools(ctx: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[tool_of(one) for one in await peer_of(ctx).client.list_tools()])

    @_answered
    async def call_tool(ctx: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        peer = peer_of(ctx)
        with peer.cancellable("" if ctx.request_id is None else ctx.request_id):
            return await call_or_ask(ctx, peer, params, functools.partial(_call, ctx, peer, params))
        raise MCPError(_CANCELLED, "the client cancelled the call, and everything it started was killed")

    @_answered
    async def resources(ctx: Context, _params: PaginatedRequestParams | None) -> ListResourcesResult:
        return await list_resources(peer_of(ctx))

    async def templates(_ctx: Context, _params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return list_templates()

    @_answered
    async def resource(ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await read_resource(peer_of(ctx), params.uri, ctx.protocol_version)

    server: Server[Any] = Server(
        "airlock",
        version=airlock_version(),
        title="Airlock",
        instructions=_INSTRUCTIONS,
        # No schema of ours declares headers; without this each call would first list the tools.
        get_tool_input_schema=lambda _name: None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=resources,
        on_list_resource_templates=templates,
        on_read_resource=resource,
    )
    # The gateway's edge has the spans of the calls.
    server.middleware.clear()
    return server


def _answered(
    handler: Callable[[Context, P], Coroutine[Any, Any, R]],
) -> Callable[[Context, P], Coroutine[Any, Any, R]]:
    """Translate what a handler raises into the protocol's errors, and run it in a task of its own.

    anyio knows its own cancellations by their message, which calls of grpc lose: in the task of `mcp` such a
    cancellation would end the whole connection.
    """

    @functools.wraps(handler)
    async def answered(ctx: Context, params: P) -> R:
        try:
            return await in_own_task(handler(ctx, params))
        except AirlockError as error:
            raise error_of(error) from None
        except MCPError:
            raise
        except Exception as error:
            log.exception("fault in an MCP request", method=ctx.method)
            raise MCPError(INTERNAL_ERROR, "internal error in the gateway; its log has the details") from error

    return answered


async def _call(ctx: Context, peer: Peer, params: CallToolRequestParams) -> ToolResult:
    """Make a call; its output is progress if the client asked for progress."""
    wants_progress = bool(ctx.meta) and "progress_token" in (ctx.meta or {})
    on_output = _Progress(ctx).report if wants_progress else None
    return await peer.client.call_tool(params.name, params.arguments or {}, thread=peer.thread, on_output=on_output)


class _Progress:
    """Reports output as it arrives: the progress is the number of bytes, the message is the text."""

    def __init__(self, ctx: Context) -> None:
        self._session = ctx.session
        self._bytes = 0
        # A character may be split between two pieces with a piece of the other stream in between.
        make = codecs.getincrementaldecoder("utf-8")
        self._texts = {stream: make("replace") for stream in ("stdout", "stderr")}

    async def report(self, stream: str, data: bytes) -> None:
        self._bytes += len(data)
        await self._session.report_progress(self._bytes, message=self._texts[stream].decode(data))
