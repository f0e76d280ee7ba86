"""One session with one server: it agrees on a revision, lists the tools, and makes calls until the connection ends.

A task of the session owns the connection, because the library's contexts must be left by the task that entered them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

import mcp_types as types
from mcp.client._transport import TransportStreams
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import JsonValue, ValidationError

from gateway.mcp_servers.definitions import TOOLS_LIMIT, Definitions, list_digest
from gateway.mcp_servers.traffic import Traffic
from gateway.support.heavy_work import Work, at_once
from gateway.support.printable_text import printable
from gateway.support.version import airlock_version

_PAGES_LIMIT = 64
_SAID_CHARS = 1_000
_PROGRESS_LIMIT = 1_000
# The library logs what servers send, whatever it is.
for _name in ("mcp.client", "mcp.shared", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

Open = Callable[[Traffic], AbstractAsyncContextManager[TransportStreams]]
OnProgress = Callable[[str], None]


class ServerFailed(Exception):
    """A server cannot be used, or did not answer; str() says why, for the model and the operator."""


class _Client(ClientSession):
    """Checks no output: the schema is the server's, and so is the output."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        del name, result


class Session:
    """A session with one server.

    With `modern_first` the newest revision is tried before the older handshake. `is_lost` returns whether it can answer
    no more, and `why_lost` says more of that, "" for nothing. `work` reads what the server lists, in turns of its
    tenant. `definitions` are the tools as they were listed last.
    """

    def __init__(
        self,
        open_: Open,
        *,
        modern_first: bool,
        is_lost: Callable[[], Awaitable[bool]] | None = None,
        why_lost: Callable[[], Awaitable[str]] | None = None,
        work: Work = at_once,
    ) -> None:
        self.definitions = Definitions({})
        self.traffic = Traffic()
        self._open = open_
        self._modern_first = modern_first
        self._is_lost = is_lost
        self._why_lost = why_lost
        self._work = work
        self._client: _Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._stale = True
        self._listing = asyncio.Lock()
        self._list_digest = ""

    @property
    def alive(self) -> bool:
        return self._owner is not None and not self._owner.done() and not self.traffic.problem

    async def can_go_on(self) -> bool:
        """Return whether calls can be made in it."""
        return self.alive and not (self._is_lost is not None and await self._is_lost())

    async def start(self, timeout_s: float) -> None:
        """Connect, agree on a revision and list the tools. Raises ServerFailed."""
        ready: asyncio.Future[_Client] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready), name="mcp session")
        try:
            async with asyncio.timeout(timeout_s):
                self._client = await ready
                with self.traffic.request():
                    await self._agree(self._client)
                await self.list_tools()
        except TimeoutError:
            await self.end()
            raise ServerFailed(f"it did not list its tools within {timeout_s:g} s{await self._more()}") from None
        except ServerFailed:
            await self.end()
            raise
        except Exception as error:
            await self.end()
            raise await self._failed(error) from error
        except BaseException:
            await self.end()
            raise

    async def list_tools(self) -> None:
        """List the tools, unless nothing can have changed. Raises ServerFailed."""
        async with self._listing:
            if not self._stale or self._client is None:
                return
            self._stale = False  # the server may say meanwhile that they have changed
            try:
                await self._read(await self._listed(self._client))
            except BaseException as error:
                self._stale = True
                if isinstance(error, ServerFailed) or not isinstance(error, Exception):
                    raise
                raise await self._failed(error) from error

    async def _listed(self, client: _Client) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = []
        cursor: str | None = None
        with self.traffic.request():
            for _ in range(_PAGES_LIMIT):
                page = await client.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                listed += [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None or len(listed) > TOOLS_LIMIT:
                    break
            else:
                raise ServerFailed(f"its list of tools has no end: {_PAGES_LIMIT} pages, and more follow")
        return listed

    async def _read(self, listed: list[dict[str, Any]]) -> None:
        digest = await self._work(list_digest, listed)
        if digest == self._list_digest:
            return
        steps = Definitions.reading(listed)
        while (found := await self._work(next, steps)) is None:
            pass
        self.definitions, self._list_digest = found, digest

    async def call(self, tool: str, arguments: Mapping[str, JsonValue], *, on_progress: OnProgress) -> dict[str, Any]:
        """Return the answer of a tool as JSON, however long it takes. Raises ServerFailed.

        Cancelling the await cancels the request.
        """
        client = self._client
        if client is None or not self.alive:
            raise ServerFailed("its session is over")
        left = _PROGRESS_LIMIT

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            nonlocal left
            left -= 1
            if left >= 0:
                of = f"/{total:g}" if total is not None else ""
                on_progress(f"{progress:g}{of} {printable(message or '', _SAID_CHARS)}".strip())

        try:
            with self.traffic.request():
                answer = await client.call_tool(tool, dict(arguments), progress_callback=progressed)
        except Exception as error:
            raise await self._failed(error) from error
        return await self._work(partial(answer.model_dump, by_alias=True, mode="json", exclude_none=True))

    async def end(self) -> None:
        """End the session; what it was connected to stays as it is."""
        self._closing.set()
        if self._owner is not None and not self._owner.done():
            self._owner.cancel()
            with suppress(BaseException):
                await asyncio.wait({self._owner}, timeout=5)

    # --- the connection ---

    async def _own(self, ready: asyncio.Future[_Client]) -> None:
        try:
            async with self._open(self.traffic) as (read, write):
                information = types.Implementation(name="airlock", version=airlock_version())
                async with _Client(read, write, client_info=information, message_handler=self._heed) as client:
                    if not ready.done():
                        ready.set_result(client)
                    await self._closing.wait()
        except Exception as error:
            self.traffic.problem = self.traffic.problem or _said(error)
            if not ready.done():
                ready.set_exception(ServerFailed(self.traffic.problem))
        finally:
            self.traffic.problem = self.traffic.problem or "its session is over"
            ready.cancel()

    async def _heed(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale = True

    async def _agree(self, client: _Client) -> None:
        """Agree on a revision: by discovery (2026-07-28), or by the handshake of those before it.

        A program may never answer what it does not know, so it is asked in the way that most understand. Over HTTP
        everything is answered.
        """
        ways = [client.discover, client.initialize]
        first, second = ways if self._modern_first else reversed(ways)
        try:
            await first()
        except (MCPError, RuntimeError, ValidationError) as error:
            if self.traffic.problem and not self._modern_first:
                raise
            self.traffic.problem = ""  # an older server answers with HTTP 400 or 404, say
            try:
                await second()
            except MCPError as other:
                raise (other if self._modern_first else error) from error

    async def _failed(self, error: BaseException) -> ServerFailed:
        said = _said(error)
        if self.traffic.problem and (not isinstance(error, MCPError) or "closed" in said.lower() or "HTTP" in said):
            said = self.traffic.problem
        elif self.traffic.problem:
            said = f"{said} ({self.traffic.problem})"
        failed = ServerFailed(f"{said}{await self._more()}")
        answered = isinstance(error, MCPError) and error.code not in (types.CONNECTION_CLOSED, types.INVALID_REQUEST)
        if answered and self._owner is not None and not self._owner.done():
            self.traffic.problem = ""  # an error that the server answers with ends no session
        return failed

    async def _more(self) -> str:
        if self._why_lost is None or not self.traffic.problem:
            return ""
        more = await self._why_lost()
        return f": {more}" if more else ""


def _said(error: BaseException) -> str:
    """Return what an error says; of a group, its first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        return "it sent an answer that is not MCP"
    return printable(str(error) or type(error).__name__, _SAID_CHARS)
