"""A call on envd's face: its sandbox, its caller, and a client that makes calls of Airlock for it."""

import asyncio
import base64
import binascii
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext

from agent.cancellation import ended
from gateway.e2b.errors import connect_code, known, said
from gateway.e2b.open_streams import OpenStreams
from gateway.errors import AirlockError, Cancelled, PermissionDenied, Unauthenticated
from gateway.http.calls import InProcessClient
from gateway.storage.e2b_store import E2bSandbox

USER = "user"
"""What E2B's SDKs call the user of a sandbox: here the tool user, the only one."""
_KEEPALIVE_S = 90.0
_Q = TypeVar("_Q")
_A = TypeVar("_A")
Context = RequestContext[Any, Any]


@dataclass(frozen=True, eq=False)
class EnvdCall:
    """One call. `gone` is set when its client has left; `over` when its stream is to end, also with its sandbox."""

    sandbox: E2bSandbox
    client: InProcessClient
    streams: OpenStreams
    gone: asyncio.Event
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def thread(self) -> str:
        return self.sandbox.thread

    @property
    def env(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.sandbox.options.get("env", {})
        return found

    async def while_there(self, work: Coroutine[Any, Any, _A]) -> _A:
        """Return the result of some work, which is cancelled when the client leaves; raises Cancelled then."""
        working, left = asyncio.create_task(work), asyncio.create_task(self.gone.wait())
        try:
            await asyncio.wait((working, left), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise Cancelled("the client closed the connection")
        finally:
            await ended(left, working)


def check_user(name: str | None) -> None:
    """Raise PermissionDenied for root and Unauthenticated for another user than the sandbox's own."""
    if name in (None, "", USER):
        return
    if name == "root":
        raise PermissionDenied(
            "user 'root': a sandbox has no root; commands and files belong to one unprivileged user, which is called "
            f"{USER!r} here"
        )
    raise Unauthenticated(f"invalid username: {name[:64]!r}; a sandbox has one user, which is called {USER!r} here")


def check_authorization(header: str | None) -> None:
    """Raise as check_user for the user of a Basic authorization, which is how the SDKs name it."""
    if not header:
        return
    scheme, _, encoded = header.partition(" ")
    try:
        name = base64.b64decode(encoded, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        name = ""
    if scheme.lower() != "basic" or not name:
        raise Unauthenticated("Authorization: Basic with the name of a user is expected, or none")
    check_user(name)


def keepalive_of(context: Context) -> float:
    """Return after how many seconds without an event a client wants a sign of life."""
    asked = context.request_headers.get("keepalive-ping-interval", "")
    return float(asked) if asked.isdecimal() and len(asked) < 6 and int(asked) else _KEEPALIVE_S


def unary(
    method: Callable[[EnvdCall, _Q, Context], Coroutine[Any, Any, _A]], call: EnvdCall
) -> Callable[[_Q, Context], Awaitable[_A]]:
    """Return a method for one call, with its errors as errors of Connect; it ends when its client leaves."""

    @functools.wraps(method)
    async def rpc(request: _Q, context: Context) -> _A:
        try:
            check_authorization(context.request_headers.get("authorization"))
            return await call.while_there(method(call, request, context))
        except ConnectError:
            raise
        except Exception as error:
            raise of_connect(known(error)) from error

    return rpc


def streaming(
    method: Callable[[EnvdCall, _Q, Context], AsyncIterator[_A]], call: EnvdCall
) -> Callable[[_Q, Context], AsyncIterator[_A]]:
    """Return a method that streams, as `unary` does; the stream ends with its sandbox."""

    @functools.wraps(method)
    async def rpc(request: _Q, context: Context) -> AsyncIterator[_A]:
        try:
            check_authorization(context.request_headers.get("authorization"))
            if call.streams.full(call.sandbox.id):
                raise ConnectError(Code.RESOURCE_EXHAUSTED, "the sandbox has too many open streams")
            with call.streams.opened(call.sandbox.id, call.over):
                async for answer in method(call, request, context):
                    yield answer
        except ConnectError:
            raise
        except Exception as error:
            raise of_connect(known(error)) from error

    return rpc


def of_connect(error: AirlockError) -> ConnectError:
    """Return an error of Connect for an error."""
    return ConnectError(Code(connect_code(error)), said(error))
