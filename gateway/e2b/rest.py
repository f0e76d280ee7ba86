"""E2B's REST face, below /e2b: sandboxes, their times, their snapshots. After spec/openapi.yml of E2B's repository."""

import asyncio
import hashlib
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, request_response

from gateway.client import Snapshot
from gateway.e2b import requests as asked
from gateway.e2b import views
from gateway.e2b.access import Access, KeyHolder
from gateway.e2b.egress import egress_of
from gateway.e2b.egress_rules import OPTION, THREAD_PREFIX
from gateway.e2b.errors import NoCounterpart, http_status, known, refused, said
from gateway.e2b.lifecycle import Lifecycle
from gateway.errors import AirlockError, InvalidArgument, NotFound
from gateway.storage.e2b_store import PAUSED, RUNNING, E2bSandbox
from gateway.support.paging import Place, paged, place_of
from sandbox.fair_semaphore import FairSemaphore

TEMPLATES = frozenset({"base", "code-interpreter-v1"})
"""The templates that the SDKs ask for by default: the image of the tenant's policy."""
_SNAPSHOT_PREFIX = "snap_"
_IDEMPOTENCY_KEY = re.compile(r"[a-z0-9-]{1,255}")
# How many sandboxes a filter by metadata or template looks at for one page, which then may be short.
_SEEN_LIMIT, _BATCH = 2000, 100
# A filter that matches little reads very many rows: such lists of one tenant must not keep the others waiting.
_LISTS_AT_ONCE, _LISTS_OF_ONE = 4, 2
_SNAPSHOTS_LIMIT = 1000
_METRIC_AGE_S = 10
Handler = Callable[[Request, KeyHolder], Awaitable[Response]]


@dataclass(frozen=True)
class RestFace:
    """The routes, below a prefix."""

    access: Access
    lifecycle: Lifecycle
    _lists: FairSemaphore = field(default_factory=lambda: FairSemaphore(_LISTS_AT_ONCE, of_one=_LISTS_OF_ONE))

    def routes(self, prefix: str) -> Sequence[BaseRoute]:
        of_sandbox = "/sandboxes/{sandbox_id}"
        served: Sequence[tuple[str, str, Handler]] = (
            ("POST", "/sandboxes", self.create),
            ("POST", "/v2/sandboxes", self.create),
            ("GET", "/sandboxes", self.list),
            ("GET", "/v2/sandboxes", self.list),
            ("GET", "/sandboxes/metrics", self.all_metrics),
            ("GET", of_sandbox, self.get),
            ("DELETE", of_sandbox, self.kill),
            ("GET", f"{of_sandbox}/metrics", self.metrics),
            ("POST", f"{of_sandbox}/pause", self.pause),
            ("POST", f"{of_sandbox}/resume", self.connect),
            ("POST", f"{of_sandbox}/connect", self.connect),
            ("POST", f"/v2{of_sandbox}/connect", self.connect),
            ("POST", f"{of_sandbox}/timeout", self.set_timeout),
            ("POST", f"{of_sandbox}/refreshes", self.refresh),
            ("PUT", f"{of_sandbox}/network", self.set_network),
            ("POST", f"{of_sandbox}/fork", self.fork),
            ("POST", f"{of_sandbox}/snapshots", self.create_snapshot),
            ("GET", "/snapshots", self.list_snapshots),
            ("DELETE", "/templates/{template_id}", self.delete_snapshot),
        )
        routes = [Route(prefix + path, self._answering(handle), methods=[method]) for method, path, handle in served]
        return [*routes, Mount(prefix, request_response(self._answering(_not_served)))]  # any other path, by any method

    def _answering(self, handle: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await handle(request, await self.access.key_holder(request))
            except Exception as error:
                return refused(known(error))

        return answer

    async def create(self, request: Request, who: KeyHolder) -> Response:
        body = await asked.read_body(asked.NewSandbox, request)
        body.check()
        egress = egress_of(who.tenant, body.allow_internet_access, body.network)
        template = body.template_id.removesuffix(":default")
        snapshot_id = template if template.startswith(_SNAPSHOT_PREFIX) else ""
        if not snapshot_id and template not in TEMPLATES:
            raise NotFound(
                f"template {template!r} not found: use {' or '.join(sorted(TEMPLATES))}, which both mean the image of "
                "the tenant's policy (sandbox.image), or the id of a snapshot"
            )
        options: Mapping[str, Any] = {
            "template": template,
            "metadata": body.metadata,
            "env": body.env_vars,
            "on_timeout": "pause" if body.auto_pause else "kill",
            "auto_resume": body.auto_resume is not None and body.auto_resume.enabled,
            "internet": body.allow_internet_access,
            "timeout_s": body.timeout,
            OPTION: egress,
        }
        sandbox = await self.lifecycle.create(
            who, options, body.timeout, snapshot_id=snapshot_id, name=_requested_name(request, who)
        )
        return JSONResponse(views.connection(sandbox, who.key_id), 201)

    async def list(self, request: Request, who: KeyHolder) -> Response:
        query = asked.read_query(asked.ListQuery, request)
        states = frozenset(query.state.split(","))
        if not states <= {RUNNING, PAUSED}:
            raise InvalidArgument(f"state: {query.state!r}: running, paused or both are expected")
        if request.url.path.endswith("/v2/sandboxes") is False and "state" not in request.query_params:
            states = frozenset({RUNNING})  # as the first version of this list has it
        wanted = {urllib.parse.unquote(k): urllib.parse.unquote(v) for k, v in urllib.parse.parse_qsl(query.metadata)}
        key = ("e2b", sorted(states), query.metadata, query.order, query.started_after, query.template)
        found: list[E2bSandbox] = []
        after, seen = place_of(query.next_token, *key), 0
        while len(found) <= query.limit and seen < _SEEN_LIMIT:
            async with self._lists.turn(who.tenant.name):
                batch = await self.access.store.page(
                    who.tenant.name,
                    states=states,
                    ascending=query.order == "asc",
                    since_us=_microseconds(query.started_after),
                    after=after,
                    limit=_BATCH,
                )
            found += [one for one in batch if _matches(one, wanted, query.template)]
            seen += len(batch)
            if len(batch) < _BATCH:
                break
            after = _place(batch[-1])
        shown, token = paged(found, query.limit, _place, *key)
        headers = {"x-next-token": token} if token else {}
        return JSONResponse([views.listed(one, who.tenant) for one in shown], headers=headers)

    async def get(self, request: Request, who: KeyHolder) -> Response:
        sandbox = await self._owned(request, who)
        return JSONResponse(views.detail(sandbox, who.tenant, who.key_id))

    async def kill(self, request: Request, who: KeyHolder) -> Response:
        await self.lifecycle.kill(who, request.path_params["sandbox_id"])
        return Response(status_code=204)

    async def pause(self, request: Request, who: KeyHolder) -> Response:
        await asked.read_body(asked.Pause, request)
        await self.lifecycle.pause(who, request.path_params["sandbox_id"])
        return Response(status_code=204)

    async def connect(self, request: Request, who: KeyHolder) -> Response:
        body = await asked.read_body(asked.Connect, request)
        sandbox, resumed = await self.lifecycle.connect(who, request.path_params["sandbox_id"], body.timeout)
        return JSONResponse(views.connection(sandbox, who.key_id), 201 if resumed else 200)

    async def set_timeout(self, request: Request, who: KeyHolder) -> Response:
        body = await asked.read_body(asked.Timeout, request)
        await self.lifecycle.set_timeout(who, request.path_params["sandbox_id"], body.timeout)
        return Response(status_code=204)

    async def refresh(self, request: Request, who: KeyHolder) -> Response:
        body = await asked.read_body(asked.Refresh, request)
        sandbox = await self._owned(request, who)
        ends_us = self.access.store.clock() + body.duration * 1_000_000
        await self.access.store.set_end(sandbox, ends_us, who.shown, later_only=True)
        return Response(status_code=204)

    async def set_network(self, request: Request, who: KeyHolder) -> Response:
        body = await asked.read_body(asked.NetworkBody, request)
        sandbox = await self._owned(request, who)
        egress = egress_of(who.tenant, None, body)
        await self.access.store.set_option(sandbox, OPTION, egress, who.shown)
        return Response(status_code=204)

    async def metrics(self, request: Request, who: KeyHolder) -> Response:
        sandbox = await self._owned(request, who)
        now_s = self.access.store.clock() // 1_000_000
        start, end = (request.query_params.get(name, str(now_s)) for name in ("start", "end"))
        if not (start.isdecimal() and end.isdecimal()):
            raise InvalidArgument("start, end: times in seconds since 1970")
        if int(start[:18]) > now_s or int(end[:18]) < now_s - _METRIC_AGE_S:
            return JSONResponse([])  # only the present is known
        reading = await self._metric(who, sandbox)
        return JSONResponse([] if reading is None else [reading])

    async def all_metrics(self, request: Request, who: KeyHolder) -> Response:
        ids = [one for one in request.query_params.get("sandbox_ids", "").split(",") if one][:100]
        found = [await self.lifecycle.owned(who, one) for one in ids]
        readings = await asyncio.gather(*(self._metric(who, one) for one in found))
        of = {one.id: reading for one, reading in zip(found, readings, strict=True) if reading is not None}
        return JSONResponse({"sandboxes": of})

    async def _metric(self, who: KeyHolder, sandbox: E2bSandbox) -> Mapping[str, Any] | None:
        try:
            stats = await who.client.get_sandbox_stats(sandbox.thread)
        except NotFound:
            return None
        return views.metric(stats, self.access.store.clock())

    async def fork(self, request: Request, who: KeyHolder) -> Response:
        body = await asked.read_body(asked.Fork, request)
        sandbox = await self._owned(request, who)
        taken = await who.client.create_snapshot(sandbox.thread, comment=f"fork of sandbox {sandbox.id}")
        forks: list[Mapping[str, Any]] = []
        try:
            for _ in range(body.count):
                try:
                    made = await self.lifecycle.create(who, sandbox.options, body.timeout, snapshot_id=taken.id)
                    forks.append({"sandbox": views.connection(made, who.key_id)})
                except AirlockError as error:
                    forks.append({"error": {"code": http_status(error), "message": said(error)}})
        finally:
            await who.client.delete_snapshot(taken.id)
        return JSONResponse(forks, 201)

    async def create_snapshot(self, request: Request, who: KeyHolder) -> Response:
        body = await asked.read_body(asked.NewSnapshot, request)
        if body.name:
            raise NoCounterpart("name: a snapshot has an id and no name")
        sandbox = await self._owned(request, who)
        return JSONResponse(views.snapshot(await who.client.create_snapshot(sandbox.thread)), 201)

    async def list_snapshots(self, request: Request, who: KeyHolder) -> Response:
        query = request.query_params
        if query.get("name"):
            raise NoCounterpart("name: a snapshot has an id and no name")
        limit = query.get("limit", "100")
        if not (limit.isdecimal() and 1 <= int(limit[:9]) <= 100):
            raise InvalidArgument("limit: 1 to 100")
        of_one = query.get("sandboxID", "")
        found: list[Snapshot] = []
        try:
            async for one in who.client.snapshots(thread=f"{THREAD_PREFIX}{of_one}" if of_one else ""):
                if one.thread.startswith(THREAD_PREFIX) and one.kind == "asked":
                    found.append(one)
                if len(found) >= _SNAPSHOTS_LIMIT:
                    break
        except NotFound:
            found = []
        after = query.get("nextToken", "")
        start = next((at + 1 for at, one in enumerate(found) if one.id == after), 0)
        shown = found[start : start + int(limit)]
        more = {"x-next-token": shown[-1].id} if start + len(shown) < len(found) else {}
        return JSONResponse([views.snapshot(one) for one in shown], headers=more)

    async def delete_snapshot(self, request: Request, who: KeyHolder) -> Response:
        await who.client.delete_snapshot(request.path_params["template_id"])
        return Response(status_code=204)

    async def _owned(self, request: Request, who: KeyHolder) -> E2bSandbox:
        return await self.lifecycle.owned(who, request.path_params["sandbox_id"])


async def _not_served(request: Request, _who: KeyHolder) -> Response:
    raise NoCounterpart(f"{request.method} {request.url.path}: this part of E2B's API has no counterpart in Airlock")


def _requested_name(request: Request, who: KeyHolder) -> str:
    """Return the name that a repeated request to create a sandbox has too; "" if it cannot be repeated."""
    key = request.headers.get("idempotency-key", "")
    if not key:
        return ""
    if not _IDEMPOTENCY_KEY.fullmatch(key):
        raise InvalidArgument("Idempotency-Key: 1 to 255 lower-case letters, digits and hyphens")
    return hashlib.sha256(f"{who.tenant.name}\0{who.key_id}\0{key}".encode()).hexdigest()[:32]


def _matches(sandbox: E2bSandbox, metadata: Mapping[str, str], template: str) -> bool:
    has = sandbox.options.get("metadata", {})
    return all(has.get(name) == value for name, value in metadata.items()) and (
        not template or sandbox.options.get("template") == template
    )


def _place(sandbox: E2bSandbox) -> Place:
    return sandbox.created_us, sandbox.id


def _microseconds(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000_000) if text else 0
    except ValueError:
        raise InvalidArgument(f"startedAfter: {text!r} is not a time") from None
