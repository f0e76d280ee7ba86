"""Requests to a Kubernetes cluster, and what its refusals mean. The only file that imports kubernetes_asyncio.

Objects are JSON as the API has it. A request that may be repeated is, while the API is overloaded or the connection
breaks: every one here may be, for names are chosen by the caller and updates name the version that they replace.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config.config_exception import ConfigException

from sandbox.engines.kubernetes.answers import lines, status_of, whole
from sandbox.engines.kubernetes.refusals import forbidden
from sandbox.errors import EngineUnavailable, SandboxUnavailable

log = logging.getLogger(__name__)

Made: TypeAlias = dict[str, Any]
"""An object as the API has it."""

_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_PAGE = 500
# The API ends a watch after so long, or this process does, if nothing says that the connection is dead.
_WATCH_S = 240
_SHOWN = 500
# What a namespace says that was just made, until controllers have seen it.
_NOT_YET = ("error looking up service account", "status unknown for quota")
_NOT_YET_S = 0.5
_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Resource:
    """A kind of object, as the API and its roles name it."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object or of all; without a namespace of one that is in none, or of all in any."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{scope}/{self.plural}{f'/{name}' if name else ''}"


PODS = Resource("", "v1", "pods")
CLAIMS = Resource("", "v1", "persistentvolumeclaims")
SECRETS = Resource("", "v1", "secrets")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses")
QUOTAS = Resource("", "v1", "resourcequotas")
LIMIT_RANGES = Resource("", "v1", "limitranges")
NAMESPACES = Resource("", "v1", "namespaces")
SANDBOXES = Resource("agents.x-k8s.io", "v1beta1", "sandboxes")

# Of the warm pool, which there is in one namespace for all tenants.
_OF_POOL: Mapping[Resource, frozenset[str]] = {PODS: frozenset({"get", "patch"}), CLAIMS: frozenset({"get", "patch"})}

VERBS: Mapping[Resource, frozenset[str]] = {
    PODS: frozenset({"create", "delete", "list", "watch"}) | _OF_POOL[PODS],
    CLAIMS: frozenset({"create", "delete", "list"}) | _OF_POOL[CLAIMS],
    LEASES: frozenset({"create", "delete", "get", "list", "update", "watch"}),
    SECRETS: frozenset({"create", "get", "update"}),
    NETWORK_POLICIES: frozenset({"create", "get", "update"}),
    QUOTAS: frozenset({"create", "get", "update"}),
    LIMIT_RANGES: frozenset({"create", "get", "update"}),
}
"""All that is asked of the namespace of sandboxes; a request of another verb is an error of this program.

With a namespace for each tenant only the Leases are there, and the rest is asked of the whole cluster: CLUSTER_VERBS.
"""

CLUSTER_VERBS: Mapping[Resource, frozenset[str]] = {
    NAMESPACES: frozenset({"create", "delete", "get"}),
    **{
        resource: verbs - _OF_POOL.get(resource, frozenset()) for resource, verbs in VERBS.items() if resource != LEASES
    },
}
"""All that is asked of the cluster with a namespace for each tenant: what a role grants in namespaces to come, it
grants in all. So get and update of what is in NAMED are for objects of that name alone."""

NAMED: Mapping[Resource, str] = {
    SECRETS: "airlock-relay",
    NETWORK_POLICIES: "airlock-sandboxes",
    QUOTAS: "airlock-limits",
    LIMIT_RANGES: "airlock-limits",
}
"""The one object of a kind in each tenant's namespace, by its name."""

SANDBOX_VERBS: Mapping[Resource, frozenset[str]] = {SANDBOXES: frozenset({"create", "delete", "get", "list", "patch"})}
"""What is asked besides in the mode agent-sandbox, of the namespaces of sandboxes."""

GATEWAY_VERBS: Mapping[Resource, frozenset[str]] = {SECRETS: frozenset({"create", "get"})}
"""All that is asked of the gateway's own namespace, for the key of the instance's authority."""

_OF_EVERYBODY: Mapping[Resource, frozenset[str]] = {
    REVIEWS: frozenset({"create"}),
    STORAGE_CLASSES: frozenset({"get"}),
}
# No role has to grant these: everybody may ask what he may do, and a class that cannot be read is merely not known.

_GRANTED = {**CLUSTER_VERBS, **VERBS, **SANDBOX_VERBS, **_OF_EVERYBODY}


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
        timeout = aiohttp.ClientTimeout(total=_WATCH_S + 30, connect=_TIMEOUT_S)
        try:
            response = await self._send("watch", resource.path(namespace), "GET", query, None, timeout)
            async with response:
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
            raise self._unreachable(error) from error

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
        if verb not in _GRANTED[resource]:
            raise AssertionError(f"{verb} {resource.plural} is not among the verbs that the gateway is granted")
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
                    raise self._unreachable(error) from error
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
                    raise EngineUnavailable(self._unconfigured(error)) from error
                self._client = client.ApiClient(settings)
            return self._client

    def _unconfigured(self, error: BaseException) -> str:
        if self._kubeconfig is None and self._context is None:
            return (
                f"no Kubernetes cluster is configured: this process runs in none ({error}). Run the gateway in the "
                "cluster with a service account, or set sandbox.kubernetes.kubeconfig"
            )
        return f"sandbox.kubernetes.kubeconfig or .context cannot be used: {error or 'the context is not in it'}"

    def _unreachable(self, error: BaseException) -> EngineUnavailable:
        said = str(error)[:_SHOWN] or type(error).__name__
        if isinstance(error, aiohttp.ClientSSLError):
            return EngineUnavailable(
                f"the Kubernetes API at {self.host} has a certificate that is not accepted: {said}; correct the "
                "certificate-authority of sandbox.kubernetes.kubeconfig, or the clock of this machine"
            )
        return EngineUnavailable(
            f"the Kubernetes API at {self.host} does not answer: {said}; check that it runs and that the network lets "
            "the gateway reach it"
        )

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
