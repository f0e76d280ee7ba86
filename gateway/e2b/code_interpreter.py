"""The code interpreter's face (port 49999 of a sandbox): E2B's `run_code` over the tool execute_python.

A context is an interpreter of the thread. Its requests carry the sandbox's token as E2B-Traffic-Access-Token too, which
is all that some of them have.
"""

import asyncio
import base64
import contextlib
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, NoReturn

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from agent.capabilities.python import IMAGE_LIMIT_BYTES
from gateway.client import ToolResult
from gateway.e2b.envd_call import EnvdCall
from gateway.e2b.errors import Gone, NoCounterpart
from gateway.e2b.paths import HOME, path_of
from gateway.e2b.requests import Body, read_body
from gateway.errors import InvalidArgument, NotFound, PermissionDenied

_TOOL = "execute_python"
_PROCESS = re.compile(r"airlock-python-[0-9a-f]+-([A-Za-z0-9_-]{1,32})")
_DEFAULT = "default"
_KEEPALIVE_S = 5.0
_PIECES = 16
_CODE_LIMIT_CHARS = 200_000
_TEXTS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "text/latex": "latex",
    "application/javascript": "javascript",
}
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg"}


class _Execution(Body):
    """POST /execute."""

    code: str = Field(max_length=_CODE_LIMIT_CHARS)
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = Field(default=None, max_length=256)


class _NewContext(Body):
    """POST /contexts."""

    cwd: str | None = None
    language: str | None = None


async def answered(call: EnvdCall, request: Request, path: str) -> Response:
    """Answer a request."""
    _, _, rest = path.partition("/contexts")
    context_id, _, verb = rest.strip("/").partition("/")
    match request.method, path:
        case "GET", "/health":
            return JSONResponse("OK")
        case "POST", "/execute":
            return await _execute(call, await read_body(_Execution, request))
        case "POST", "/contexts":
            return await _create(call, await read_body(_NewContext, request))
        case "GET", "/contexts":
            return JSONResponse([_context(one) for one in sorted({_DEFAULT, *await _contexts(call)})])
    if rest and request.method == "POST" and verb == "restart":
        await _ran(call, {"code": "None", "restart": True, "context": await _known(call, context_id)})
        return JSONResponse(None)
    if rest and request.method == "DELETE" and not verb:
        await call.client.remove_process(call.thread, (await _contexts(call)).get(context_id) or _missing(context_id))
        return JSONResponse(None)
    raise NoCounterpart(f"{request.method} {path[:128]}: this part of the code interpreter has no counterpart")


async def _create(call: EnvdCall, asked: _NewContext) -> Response:
    _check_language(asked.language)
    context = secrets.token_hex(16)
    cwd = path_of(asked.cwd or HOME)
    done = await _ran(call, {"code": f"__import__('os').chdir({cwd.inside!r})", "context": context})
    if done.is_error:
        raise InvalidArgument(f"cwd: {_problem(done)['value']}")
    return JSONResponse(_context(context, cwd.shown))


async def _execute(call: EnvdCall, asked: _Execution) -> Response:
    _check_language(asked.language)
    context = _DEFAULT if asked.context_id is None else await _known(call, asked.context_id)
    is_new = bool(call.env) and context not in await _contexts(call)
    env = {**(call.env if is_new else {}), **(asked.env_vars or {})}
    if env:
        await _ran(call, {"code": f"__import__('os').environ.update({env!r})", "context": context})
    events = _events(call, {"code": asked.code, "context": context})
    # Nothing is sent before something happens, so that a refusal is an answer of its own.
    first = await anext(events)

    async def lines() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(events):
            yield _line(first)
            async for event in events:
                yield _line(event)
            if asked.env_vars:
                before = {name: call.env.get(name) for name in asked.env_vars}
                await _ran(call, {"code": _RESTORE.format(before), "context": context})
            yield _line({"type": "end_of_execution"})

    return StreamingResponse(lines(), media_type="application/x-ndjson")


_RESTORE = (
    "for _n, _v in {0!r}.items():\n    __import__('os').environ.pop(_n, None) if _v is None else "
    "__import__('os').environ.__setitem__(_n, _v)\ndel _n, _v"
)


async def _events(call: EnvdCall, arguments: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield the events of an execution; leaving interrupts it. Raises PermissionDenied before the first one."""
    pieces: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_PIECES)

    async def take(stream: str, data: bytes) -> None:
        await pieces.put((stream, data))

    async def work() -> ToolResult:
        return await call.client.call_tool(
            _TOOL, {**arguments, **await _timeout(call)}, thread=call.thread, on_output=take
        )

    running = asyncio.create_task(work(), name="code for E2B")
    over = asyncio.create_task(call.over.wait())
    try:
        with call.streams.opened(call.sandbox.id, call.over):
            while not (running.done() and pieces.empty()):
                taken = asyncio.ensure_future(pieces.get())
                try:
                    await asyncio.wait(
                        (taken, running, over), timeout=_KEEPALIVE_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    if taken.done():
                        stream, data = taken.result()
                        yield {"type": stream, "text": data.decode("utf-8", "replace"), "timestamp": time.time_ns()}
                    elif over.done():
                        raise Gone.of(call.sandbox.id)
                    elif not running.done():
                        yield {"type": "keepalive"}
                finally:
                    taken.cancel()
        for event in await _results(call, _allowed(await running)):
            yield event
    finally:
        running.cancel()
        over.cancel()
        await asyncio.wait((running, over))


async def _results(call: EnvdCall, done: ToolResult) -> list[Mapping[str, Any]]:
    structured = done.structured or {}
    events: list[Mapping[str, Any]] = [
        {"type": "number_of_executions", "execution_count": structured.get("execution_count") or 0}
    ]
    media = {one.path: one.media_type for one in done.attachments}
    for one in structured.get("results", ()):
        shown: dict[str, Any] = {"type": "result", "is_main_result": one["is_main_result"]}
        shown |= {name: one["texts"][kind] for kind, name in _TEXTS.items() if kind in one["texts"]}
        if "text" in shown:
            shown["text"] = _unquoted(shown["text"])
        if "application/json" in one["texts"]:
            with contextlib.suppress(ValueError):
                shown["json"] = json.loads(one["texts"]["application/json"])
        if one["image"] is not None:
            # Code that still runs may have put something else in its place.
            data = await call.client.read_file(call.thread, one["image"], limit_bytes=IMAGE_LIMIT_BYTES)
            shown[_IMAGES.get(media.get(one["image"], ""), "png")] = base64.b64encode(data).decode()
        events.append(shown)
    if done.is_error:
        events.append({"type": "error", **_problem(done)})
    return events


def _problem(done: ToolResult) -> Mapping[str, str]:
    error = (done.structured or {}).get("error")
    if error is not None:
        return {"name": error["name"], "value": error["value"], "traceback": error["traceback"]}
    what = {"timed_out": "TimeoutError"}.get(done.outcome, "UnexpectedEndOfExecution")
    return {"name": what, "value": done.note or done.content or done.outcome, "traceback": ""}


async def _ran(call: EnvdCall, arguments: Mapping[str, Any]) -> ToolResult:
    return _allowed(await call.client.call_tool(_TOOL, arguments, thread=call.thread))


def _allowed(done: ToolResult) -> ToolResult:
    """Return a result of code that ran. Raises PermissionDenied for a refusal, or one that waits for an approval."""
    if done.verdict != "allow":
        raise PermissionDenied(done.reason or done.content, rule=done.rule, approval_id=done.approval_id)
    return done


async def _timeout(call: EnvdCall) -> Mapping[str, float]:
    """Return the longest time that code may take here."""
    for tool in await call.client.list_tools():
        if tool.name == _TOOL:
            longest = tool.parameters.get("properties", {}).get("timeout_s", {}).get("maximum")
            return {} if longest is None else {"timeout_s": longest}
    raise PermissionDenied(f"the tenant's policy has no rule for {_TOOL}, which runs code (docs/processes.md)")


async def _contexts(call: EnvdCall) -> Mapping[str, str]:
    """Return the contexts, each with the id of its process."""
    found = (await call.client.processes(call.thread)).processes
    return {match[1]: one.id for one in found if (match := _PROCESS.fullmatch(one.id))}


async def _known(call: EnvdCall, context: str) -> str:
    if context != _DEFAULT and context not in await _contexts(call):
        _missing(context)
    return context


def _missing(context: str) -> NoReturn:
    raise NotFound(f"Context {context[:64]} not found")


def _check_language(language: str | None) -> None:
    if (language or "python").lower().strip() != "python":
        raise NoCounterpart(f"language: {str(language)[:32]!r}: code is run in Python; other languages by commands.run")


def _context(context: str, cwd: str = HOME) -> Mapping[str, str]:
    return {"id": context, "language": "python", "cwd": cwd}


def _unquoted(text: str) -> str:
    """Return a text without the quotes that Python shows around it, as E2B does."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"
