"""Requests to a Kubernetes cluster, and what its refusals mean. The only file that imports kubernetes_asyncio.

Objects are JSON as the API has it. A request that may be repeated is, while the API is overloaded or the connection
breaks: every one here may be, for names are chosen by the caller and updates name the version that they replace.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config.config_exception import ConfigException

from sandbox.engines.kubernetes.answers import cut_off, lines, status_of, whole
from sandbox.engines.kubernetes.refusals import forbidden, unconfigured, unreachable
from sandbox.engines.kubernetes.resources import ASKED, Made, Resource
from sandbox.errors import EngineUnavailable, SandboxUnavailable

log = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_PAGE = 500
# The API ends a watch after so long, or this process does, if nothing says that the connection is dead.
_WATCH_S = 240
# The API sends a bookmark once a minute: a watch that is silent for longer is dead.
WATCH_SILENCE_S = 90.0
_SHOWN = 500
# What a namespace says that was just made, until controllers have seen it.
_NOT_YET = ("error looking up service account", "status unknown for quota")
_NOT_YET_S = 0.5
_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
_MERGE = "application/merge-patch+json"


class Conflict(SandboxUnavailable):
    """An object of this name exists, or has changed since it was read."""


class NamespaceMissing(SandboxUnavailable):
    """The namespace of what was to be created does not exist."""


class Expired(SandboxUnavailable):
    """The version that a watch or list was to go on from is not known any more."""


class _Passing(Exception):
    """A refusal that may pass; `after_s` is what the API asks to wait."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class KubernetesRequests:
    """The API that a kubeconfig's context names, or that of the cluster that this process runs in.

    Every request raises EngineUnavailable when nothing answers or the credentials are refused, and SandboxUnavailable,
    with what to do, for what the API refuses. `pause` waits between attempts.
    """

    def __init__(
        self,
        kubeconfig: Path | None = None,
        context: str | None = None,
        *,
        pause: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._pause = pause
        self.owner: Made | None = None
        """The reference to what all that is created goes with; None where each object is on its own."""
        self._client: client.ApiClient | None = None
        self._replaced: client.ApiClient | None = None
        self._connecting = asyncio.Lock()

    async def get(self, resource: Resource, namespace: str, name: str) -> Made | None:
        """Return an object; None where there is none."""
        return await self._ask("get", resource, namespace, name)

    async def create(self, resource: Resource, namespace: str, made: Made, *, dry_run: bool = False) -> Made:
        """Create an object and return it; Conflict where its name is taken, also by an earlier attempt of this.

        A `dry_run` is admitted or refused in the same way, and nothing is made.
        """
        if self.owner is not None:
            made = {**made, "metadata": {**made.get("metadata", {}), "ownerReferences": [self.owner]}}
        found = await self._ask("create", resource, namespace, query={"dryRun": "All"} if dry_run else {}, body=made)
        if found is None:
            raise NamespaceMissing(
                f"namespace {namespace!r} does not exist on the cluster: create it, or correct "
                "sandbox.kubernetes.namespace of the configuration"
            )
        return found

    async def update(self, resource: Resource, namespace: str, made: Made) -> Made | None:
        """Replace an object and return it; Conflict if it has changed, None if it is gone."""
        return await self._ask("update", resource, namespace, made["metadata"]["name"], body=made)

    async def patch(self, resource: Resource, namespace: str, name: str, change: Made) -> Made | None:
        """Merge a change into an object and return it; None if it is gone.

        One that names a resourceVersion is merged only into the object as it was then, or Conflict.
        """
        return await self._ask("patch", resource, namespace, name, body=change)

    async def delete(self, resource: Resource, namespace: str, name: str, *, version: str = "", uid: str = "") -> bool:
        """Begin to delete an object, return whether it was there.

        With `version` only as it was then, with `uid` not one that was made later under its name; else Conflict.
        """
        wanted = {key: value for key, value in (("resourceVersion", version), ("uid", uid)) if value}
        body = {"preconditions": wanted} if wanted else {}
        return await self._ask("delete", resource, namespace, name, body=body) is not None

    async def list(self, resource: Resource, namespace: str, selector: str) -> tuple[list[Made], str]:
        """Return the objects with labels, and the version as of which they are."""
        found: list[Made] = []
        query = {"labelSelector": selector, "limit": str(_PAGE)}
        while True:
            page = await self._ask("list", resource, namespace, query=query) or {"items": [], "metadata": {}}
            found += page["items"]
            more = page["metadata"].get("continue")
            if not more:
                return found, str(page["metadata"].get("resourceVersion", ""))
            query = {**query, "continue": more}

    async def watch(
        self, resource: Resource, namespace: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Made]]:
        """Yield changes since a version until the API ends the watch, each after its kind; bookmarks too.

        Raises Expired when the version is too old: list again.
        """
        query = {"watch": "1", "labelSelector": selector, "resourceVersion": version}
        query |= {"allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
        timeout = aiohttp.ClientTimeout(total=_WATCH_S + 30, connect=_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        try:
            response = await self._send("watch", resource.path(namespace), "GET", query, None, timeout)
            async with response:
                with cut_off(response):
                    if response.status != 200:
                        raise self._refusal("watch", resource, namespace, response.status, await whole(response), "")
                    async for line in lines(response):
                        event = json.loads(line)
                        kind, made = str(event["type"]), event["object"]
                        if kind == "ERROR":
                            raise self._refusal("watch", resource, namespace, int(made.get("code", 500)), line, made)
                        yield kind, made
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise EngineUnavailable(f"the watch of {resource.plural} broke: {error or type(error).__name__}") from error
        except _Passing as passing:
            raise EngineUnavailable(str(passing)) from passing

    async def about(self, path: str) -> tuple[Made | None, str]:
        """Return what the API says of itself at a path, None where nothing is served, and its clock's time as text."""
        try:
            response = await self._send("get", path, "GET", {}, None, aiohttp.ClientTimeout(total=_TIMEOUT_S))
            async with response:
                data = await whole(response)
            if response.status in (200, 404):
                return json.loads(data) if response.status == 200 else None, response.headers.get("Date", "")
            raise self._refusal("get", Resource("", "", path), "", response.status, data, "")
        except (_Passing, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise unreachable(self.host, error) from error

    @property
    def host(self) -> str:
        """The address of the API, once it was asked for something."""
        return str(self._client.configuration.host) if self._client is not None else "the cluster"

    async def close(self) -> None:
        closing, self._client, self._replaced = (self._client, self._replaced), None, None
        for one in closing:
            if one is not None:
                await one.close()

    async def _renew(self, used: client.ApiClient) -> None:
        """Have the credentials read anew, unless another request, refused at the same time, has had that done.

        What is replaced is closed the next time, for other requests may be under way on it.
        """
        if self._client is used:
            closing, self._replaced, self._client = self._replaced, used, None
            if closing is not None:
                await closing.close()

    async def _ask(
        self,
        verb: str,
        resource: Resource,
        namespace: str,
        name: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: Made | None = None,
    ) -> Made | None:
        """Return the answer; None for 404."""
        if verb not in ASKED[resource]:
            raise AssertionError(f"{verb} {resource.plural} is not among the verbs that are granted")
        method = _METHODS.get(verb, "GET")
        pause_s, renewed = _FIRST_PAUSE_S, False
        for left in reversed(range(_ATTEMPTS)):
            try:
                timeout, used = aiohttp.ClientTimeout(total=_TIMEOUT_S), await self._connected()
                response = await self._send(verb, resource.path(namespace, name), method, query or {}, body, timeout)
                async with response:
                    data = await whole(response)
                if 200 <= response.status < 300:
                    return dict(json.loads(data))
                if response.status == 404:
                    return None
                if response.status == 401 and not renewed:
                    renewed = True
                    await self._renew(used)  # there may be a newer token
                    continue
                raise self._refusal(verb, resource, namespace, response.status, data, name, response.headers)
            except (_Passing, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                if not left:
                    raise unreachable(self.host, error) from error
                waited_s = max(pause_s, error.after_s) if isinstance(error, _Passing) else pause_s
                await self._pause(min(waited_s, _LONGEST_PAUSE_S) * random.uniform(0.8, 1.2))  # noqa: S311
                pause_s *= 2
        raise AssertionError("unreachable")

    async def _send(
        self,
        verb: str,
        path: str,
        method: str,
        query: Mapping[str, str],
        body: Made | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        api = await self._connected()
        log.debug("%s %s", verb, path)
        answer: aiohttp.ClientResponse = await api.call_api(
            path,
            method,
            query_params=list(query.items()),
            header_params={
                "Accept": "application/json",
                "Content-Type": _MERGE if verb == "patch" else "application/json",
            },
            body=body or None,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=timeout,
        )
        return answer

    async def _connected(self) -> client.ApiClient:
        async with self._connecting:
            if self._client is None:
                settings = client.Configuration()
                try:
                    if self._kubeconfig is None and self._context is None:
                        config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
                    else:
                        await config.load_kube_config(
                            str(self._kubeconfig) if self._kubeconfig else None,
                            context=self._context,
                            client_configuration=settings,
                            persist_config=False,
                        )
                except (ConfigException, OSError, AssertionError) as error:
                    raise unconfigured(error, in_cluster=self._kubeconfig is None and self._context is None) from error
                self._client = client.ApiClient(settings)
            return self._client

    def _refusal(
        self,
        verb: str,
        resource: Resource,
        namespace: str,
        code: int,
        data: bytes,
        name: object,
        headers: Mapping[str, str] | None = None,
    ) -> Exception:
        status = status_of(data)
        said = str(status.get("message") or data[:_SHOWN].decode("utf-8", "replace"))[:_SHOWN]
        what = f"the cluster refuses to {verb} {resource.plural} {name if isinstance(name, str) else ''}".rstrip()
        if code == 401:
            return EngineUnavailable(
                "the Kubernetes API does not accept the gateway's credentials: the token has expired or was revoked. "
                "Log in again for sandbox.kubernetes.kubeconfig, or restart the gateway's Pod for a new token"
            )
        if code == 403 and any(words in said for words in _NOT_YET):
            return _Passing(f"{what}: {said}", _NOT_YET_S)
        if code == 403:
            return forbidden(verb, resource.plural, namespace, said)
        if code == 409:
            return Conflict(f"{what}: {said}")
        if code == 410:
            return Expired(f"{what}: {said}")
        if code == 429 or code >= 500:
            waited = (headers or {}).get("Retry-After", "")
            return _Passing(f"{what}: {said}", float(waited) if waited.isdecimal() else 0.0)
        return SandboxUnavailable(f"{what}: {said}")
