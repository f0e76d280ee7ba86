"""The Kubernetes API over HTTP: authentication, RBAC, faults, and the verbs of requests.py, as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.kubernetes import kinds
from tests.kubernetes.access import Access, Use, User
from tests.kubernetes.faults import Fault, Faults
from tests.kubernetes.kinds import BY_PATH, KINDS, Kind
from tests.kubernetes.requests import Requests, Selection, Target
from tests.kubernetes.statuses import ApiError, bad_request, gone, internal, no_such_path, undecodable
from tests.kubernetes.store import Made, Store

_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}
_OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
_REVIEWS = "selfsubjectaccessreviews"
_BOOKMARK_S = 1.0


class _Reset(Exception):
    """The connection is to be reset without an answer."""


class _Drop(Exception):
    """The connection is to be ended in the midst of an answer."""


@dataclass(frozen=True)
class _Parsed:
    """A request that has been authenticated and granted."""

    target: Target
    use: Use
    user: User
    query: Mapping[str, str]
    fault: Fault


@dataclass
class ApiServer:
    """The ASGI application. `served_versions` can be changed, as can what each kind's path is."""

    store: Store
    access: Access
    faults: Faults = field(default_factory=Faults)
    logs: Callable[[Made, str], str] = lambda _pod, _container: ""
    """Return what a Pod's container has written."""
    transports: dict[tuple[str, int], asyncio.BaseTransport] = field(default_factory=dict)
    withheld: set[str] = field(default_factory=set)
    outdated: set[str] = field(default_factory=set)
    """Groups of which v1alpha1 alone is said to be served."""
    """API groups that this cluster does not have."""
    requests: Requests = field(init=False)
    seen: list[Use] = field(default_factory=list)
    """Every request that was granted, with its object's name."""

    def __post_init__(self) -> None:
        self.requests = Requests(self.store)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ApiError as error:
            headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s is not None else {}
            response = JSONResponse(error.body(), error.code, headers)
        except ClientDisconnect:
            return
        except _Reset:
            self._reset(request)
            return
        with contextlib.suppress(_Drop):
            await response(scope, receive, send)
            return
        if (transport := self._transport(request)) is not None:
            transport.close()

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path in _OPEN_PATHS:
            return JSONResponse(_VERSION) if path == "/version" else PlainTextResponse("ok")
        user = self.access.user_of(request.headers.get("authorization", ""))
        discovered = self._discovery(path)
        if discovered is not None:
            return JSONResponse(discovered)
        parts = path.strip("/").split("/")
        if parts[0] == "apis" and parts[-1] == _REVIEWS and request.method == "POST":
            return JSONResponse(self._review(await _json(request), user), 201)
        target = self._target(parts)
        parsed = self._granted(request, target, user)
        if parsed.fault.delay_s:
            await asyncio.sleep(parsed.fault.delay_s)
        if not parsed.fault.after:
            _strike(parsed.fault)
        response = await self._perform(parsed, request)
        if parsed.fault.after:
            _strike(parsed.fault)
        return response

    def _target(self, parts: list[str]) -> Target:
        """Read /api/v1/... or /apis/GROUP/VERSION/..., with a namespace or without."""
        group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
            namespace, rest = rest[1], rest[2:]
        kind = BY_PATH.get((group, version, rest[0])) if rest else None
        if kind is None or group in self.withheld or len(rest) > 3:
            raise no_such_path()
        name, subresource = (*rest[1:], "", "")[:2]
        return Target(kind, namespace, name, subresource)

    def _granted(self, request: Request, target: Target, user: User) -> _Parsed:
        query = dict(request.query_params)
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(request.method)
        if request.method == "GET":
            verb = "watch" if _is_true(query, "watch") else "get" if target.name else "list"
        elif request.method == "DELETE":
            verb = "delete" if target.name else "deletecollection"
        if verb is None or (verb in {"update", "patch"} and not target.name):
            message = "the server does not allow this method on the requested resource"
            raise ApiError(405, "MethodNotAllowed", message)
        resource = f"{target.kind.plural}/{target.subresource}".rstrip("/")
        use = Use(verb, target.kind.group, resource, target.namespace, target.name)
        self.access.require(user, use)
        self.seen.append(use)
        return _Parsed(target, use, user, query, self.faults.take(use))

    async def _perform(self, parsed: _Parsed, request: Request) -> Response:
        target, query, verb = parsed.target, parsed.query, parsed.use.verb
        if target.subresource not in {"", "status"}:
            return await self._subresource(parsed, request)
        if target.subresource == "status" and not target.kind.status:
            raise no_such_path()
        if target.kind.namespaced and not target.namespace and (verb == "create" or target.name):
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        selection = _selection(query)
        if verb == "watch":
            named = f"metadata.name={target.name}" if target.name else selection.fields
            return self._watch(parsed, Selection(selection.labels, named, version=selection.version))
        if verb == "get":
            return JSONResponse(self.requests.get(target))
        if verb == "list":
            return JSONResponse(self.requests.list(target, selection))
        body = await _json(request)
        if verb == "create":
            return JSONResponse(self.requests.create(target, body, dry_run="dryRun" in query), 201)
        if "dryRun" in query:
            raise bad_request("the API server for tests knows dryRun for create alone")
        if verb == "update":
            return JSONResponse(self.requests.update(target, body))
        if verb == "patch":
            content_type = request.headers.get("content-type", "").partition(";")[0]
            return JSONResponse(self.requests.patch(target, body, content_type))
        options = _delete_options(body, query)
        if verb == "deletecollection":
            return JSONResponse(self.requests.delete_selected(target, selection, options))
        made, ends = self.requests.delete(target, options)
        if ends or target.kind.returns_deleted:
            return JSONResponse(made)
        details = {"name": target.name, "group": target.kind.group, "kind": target.kind.plural}
        details = {**details, "uid": made["metadata"]["uid"]}
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details})

    async def _subresource(self, parsed: _Parsed, request: Request) -> Response:
        target, query = parsed.target, parsed.query
        made = self.requests.get(target) if target.name else {}
        whole = Target(target.kind, target.namespace, target.name)
        success = {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
        if (target.kind, target.subresource, request.method) == (kinds.POD, "log", "GET"):
            return PlainTextResponse(self.logs(made, query.get("container") or made["spec"]["containers"][0]["name"]))
        if (target.kind, target.subresource, request.method) == (kinds.POD, "eviction", "POST"):
            body = await _json(request)
            self.requests.delete(whole, body.get("deleteOptions") or {})
            return JSONResponse(success, 201)
        if (target.kind, target.subresource, request.method) == (kinds.POD, "binding", "POST"):
            self.requests.bind(whole, (await _json(request))["target"]["name"])
            return JSONResponse(success, 201)
        raise no_such_path()

    def _watch(self, parsed: _Parsed, selection: Selection) -> Response:
        if _is_true(parsed.query, "sendInitialEvents"):
            raise bad_request("the API server for tests knows no streaming lists")
        timeout_s = float(parsed.query.get("timeoutSeconds") or 3600)
        bookmarks = _is_true(parsed.query, "allowWatchBookmarks")
        events = self._events(parsed, selection, timeout_s, bookmarks=bookmarks)
        return StreamingResponse(_disturbed(events, parsed.fault), media_type="application/json;stream=watch")

    async def _events(
        self, parsed: _Parsed, chosen: Selection, timeout_s: float, *, bookmarks: bool
    ) -> AsyncIterator[Made]:
        target = parsed.target
        kind = target.kind
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        with self.store.changes() as queue:
            try:
                for event in self.requests.events(target, chosen):
                    yield event
            except ApiError as error:
                yield {"type": "ERROR", "object": error.body()}
                return
            version = self.store.version
            while (left := end - loop.time()) > 0:
                try:
                    change = await asyncio.wait_for(queue.get(), min(left, _BOOKMARK_S))
                except TimeoutError:
                    if bookmarks:
                        yield _bookmark(kind, version)
                    continue
                if change.version > version or chosen.version in {"", "0"}:
                    version = max(version, change.version)
                    for event in self.requests.events_of(target, chosen, change):
                        yield event
            if bookmarks:
                yield _bookmark(kind, version)

    def _review(self, body: Any, user: User) -> Made:
        """Answer a SelfSubjectAccessReview."""
        asked = body["spec"].get("resourceAttributes", {})
        resource = f"{asked.get('resource', '')}/{asked.get('subresource', '')}".rstrip("/")
        use = Use(asked["verb"], asked.get("group", ""), resource, asked.get("namespace", ""), asked.get("name", ""))
        allowed = self.access.grants(user, use)
        status = {"allowed": allowed, **({} if allowed else {"reason": ""})}
        about = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}}
        return {**about, "spec": body["spec"], "status": status}

    def _discovery(self, path: str) -> Made | None:
        """Return what groups, versions and resources are served, None for another path."""
        served = [kind for kind in KINDS if kind.group not in self.withheld]
        parts = path.strip("/").split("/")
        if path.rstrip("/") == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path.rstrip("/") == "/apis":
            groups = sorted({(kind.group, kind.version) for kind in served if kind.group})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*group) for group in groups]}
        if parts[0] == "apis" and len(parts) == 2:
            versions = {
                "v1alpha1" if parts[1] in self.outdated else one.version for one in served if one.group == parts[1]
            }
            if not versions:
                raise no_such_path()
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], versions.pop())}
        if (parts[0], len(parts)) in {("api", 2), ("apis", 3)}:
            version = "/".join(parts[1:])
            here = [kind for kind in served if kind.api_version == version]
            if not here:
                raise no_such_path()
            verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            resources = [
                {"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced, "verbs": verbs} for kind in here
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        return None

    def _transport(self, request: Request) -> asyncio.Transport | None:
        transport = self.transports.get(tuple(request.client or ()))  # type: ignore[arg-type]
        return transport if isinstance(transport, asyncio.Transport) else None

    def _reset(self, request: Request) -> None:
        if (transport := self._transport(request)) is not None:
            peer = transport.get_extra_info("socket")
            if peer is not None:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()


def _group(name: str, version: str) -> Made:
    served = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [served], "preferredVersion": served}


def _is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name) in {"1", "t", "T", "true", "True", "TRUE"}


def _strike(fault: Fault) -> None:
    if fault.reset:
        raise _Reset
    if fault.error is not None:
        raise fault.error


async def _disturbed(events: AsyncIterator[Made], fault: Fault) -> AsyncIterator[bytes]:
    count = 0
    async for event in events:
        if count == fault.drop_after_events:
            raise _Drop
        if count == fault.expire_after_events:
            yield _line({"type": "ERROR", "object": gone().body()})
            return
        if fault.event_delay_s:
            await asyncio.sleep(fault.event_delay_s)
        yield _line(event)
        count += 1


def _line(event: Made) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def _bookmark(kind: Kind, version: int) -> Made:
    about = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {"resourceVersion": str(version)}}
    return {"type": "BOOKMARK", "object": about}


async def _json(request: Request) -> Any:
    body = await request.body()
    try:
        return json.loads(body) if body else {}
    except ValueError as error:
        raise bad_request(f"the object provided is unrecognized: {error}") from None


def _selection(query: Mapping[str, str]) -> Selection:
    for number in ("limit", "resourceVersion", "timeoutSeconds"):
        if query.get(number) and not query[number].isdecimal():
            raise bad_request(f"invalid query parameter {number}: {query[number]!r}")
    return Selection(
        query.get("labelSelector", ""),
        query.get("fieldSelector", ""),
        int(query.get("limit") or 0),
        query.get("continue", ""),
        query.get("resourceVersion", ""),
    )


def _delete_options(body: Any, query: Mapping[str, str]) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise internal("DeleteOptions must be an object")
    unknown = set(body) - {
        "apiVersion", "kind", "dryRun", "gracePeriodSeconds", "orphanDependents", "preconditions", "propagationPolicy",
    }  # fmt: skip
    if unknown:
        raise undecodable(kinds.POD, f'strict decoding error: unknown field "{min(unknown)}"')
    options = dict(body)
    if "gracePeriodSeconds" in query:
        options.setdefault("gracePeriodSeconds", int(query["gracePeriodSeconds"]))
    if "propagationPolicy" in query:
        options.setdefault("propagationPolicy", query["propagationPolicy"])
    return options
