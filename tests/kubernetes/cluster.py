"""The cluster for tests as a whole: API, controllers, scheduler and kubelet in a thread, and what a test does to it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import trustme
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.kubernetes import kinds
from tests.kubernetes.access import ADMIN, Access, User, service_account
from tests.kubernetes.agent_sandbox import SandboxController
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.containers import Image
from tests.kubernetes.deletion import collect_garbage
from tests.kubernetes.faults import Fault, Faults
from tests.kubernetes.kinds import BY_NAME, Kind
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.nodes import Nodes
from tests.kubernetes.pod_run import Node
from tests.kubernetes.requests import Target
from tests.kubernetes.sandbox_claims import ClaimController, TemplateController, WarmPoolController
from tests.kubernetes.scheduler import place_pods
from tests.kubernetes.store import Made, Store
from tests.kubernetes.volumes import Volumes

P = ParamSpec("P")
T = TypeVar("T")
_START_S = 30


def storage_class(
    name: str,
    *,
    default: bool = True,
    binding: str = "WaitForFirstConsumer",
    provisioner: str = "directories.test",
    local: bool = False,
) -> dict[str, Any]:
    """Return a class whose volumes are directories of this machine, each of one node if they are `local`."""
    marked = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    about: dict[str, Any] = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": provisioner}
    if local:
        about["parameters"] = {"disk": "local"}
    return {**about, "metadata": {"name": name, "annotations": marked}, "volumeBindingMode": binding}


def definition(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of a kind, without its schema."""
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower(), "listKind": f"{kind.kind}List"}
    versions = [{"name": kind.version, "served": True, "storage": True}]
    scope = "Namespaced" if kind.namespaced else "Cluster"
    spec = {"group": kind.group, "names": names, "scope": scope, "versions": versions}
    about = {"apiVersion": kinds.DEFINITION.api_version, "kind": kinds.DEFINITION.kind}
    return {**about, "metadata": {"name": kind.qualified}, "spec": spec}


_AGENT_SANDBOX = (SandboxController, WarmPoolController, ClaimController, TemplateController)
_SNAPSHOT_CLASS = {
    "apiVersion": "snapshot.storage.k8s.io/v1",
    "kind": "VolumeSnapshotClass",
    "metadata": {"name": "standard"},
    "driver": "directories.test",
    "deletionPolicy": "Delete",
}


class Cluster:
    """A cluster that runs. Its methods may be called from any thread but its own."""

    real = False
    """Whether it is one by its kubeconfig alone (real_cluster.py)."""
    walled = False
    """Whether Pods confine what runs in them."""
    pids_limited = False
    site_options: Mapping[str, Any] = {}
    """What of a Site is particular to it."""

    def __init__(self, directory: Path, images: Mapping[str, Image], *, agent_sandbox: bool, lag_s: float) -> None:
        self.directory = directory
        self.store = Store()
        self.access = Access(self.store)
        self.faults = Faults()
        self.images = dict(images)
        """What is run for each image; one that is not there cannot be pulled."""
        self._kubelet = Kubelet(Node(self.store, self.access, self.images, directory))
        self.nodes = Nodes(self.store, self._kubelet)
        self.api = ApiServer(self.store, self.access, self.faults, self._kubelet.log)
        self.port = 0
        self._lag_s = lag_s
        self.agent_sandbox = agent_sandbox
        if not agent_sandbox:
            self.api.withheld |= {kinds.AGENTS, kinds.EXTENSIONS}
        self._authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.admin_token = self.access.token(ADMIN)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig(self, token: str = "") -> dict[str, Any]:
        """Return a configuration of a client, the administrator's if no token is given."""
        authority = base64.b64encode(self._authority.cert_pem.bytes()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "test", "user": {"token": token or self.admin_token}}],
        }

    def write_kubeconfig(self, path: Path, token: str = "") -> Path:
        path.write_text(json.dumps(self.kubeconfig(token)))
        return path

    def token(self, namespace: str, account: str) -> str:
        """Return a token of a service account, which can do what the roles bound to it grant."""
        return self.call(self.access.token, service_account(namespace, account))

    def grant(
        self, namespace: str, account: str, rules: Sequence[Mapping[str, Any]], *, everywhere: bool = False
    ) -> str:
        """Bind a role of some rules to a service account, and return a token of it."""
        name = f"{namespace}-{account}"
        role, binding = (
            (kinds.CLUSTER_ROLE, kinds.CLUSTER_ROLE_BINDING) if everywhere else (kinds.ROLE, kinds.ROLE_BINDING)
        )
        self.apply(
            {"apiVersion": role.api_version, "kind": role.kind, "metadata": {"name": name, "namespace": namespace},
             "rules": list(rules)},
            {"apiVersion": role.api_version, "kind": binding.kind, "metadata": {"name": name, "namespace": namespace},
             "roleRef": {"apiGroup": role.group, "kind": role.kind, "name": name},
             "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]},
        )  # fmt: skip
        return self.token(namespace, account)

    def used(self, namespace: str, account: str) -> set[tuple[str, str, str]]:
        """Return what a service account was granted and has used: group, resource and verb."""
        user: User = service_account(namespace, account)
        return {
            (use.group, use.resource, use.verb) for use in self.call(lambda: self.access.used.get(user.name, set()))
        }

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Create objects of manifests, in their order; what exists is replaced."""
        for manifest in manifests:
            self.call(self._apply, manifest)

    def _apply(self, manifest: Mapping[str, Any]) -> None:
        kind = BY_NAME[manifest["apiVersion"], manifest["kind"]]
        metadata = dict(manifest["metadata"])
        namespace = metadata.get("namespace", "default") if kind.namespaced else ""
        if not kind.namespaced:
            metadata.pop("namespace", None)
        target = Target(kind, namespace, metadata["name"])
        made = {**manifest, "metadata": metadata}
        if self.store.find(kind, namespace, metadata["name"]) is None:
            self.api.requests.create(Target(kind, namespace), made)
        else:
            self.api.requests.update(target, made)

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Begin to delete an object."""
        self.call(self.api.requests.delete, Target(kind, namespace, name), {})

    def kill_pod(self, namespace: str, name: str) -> None:
        """Kill what runs in a Pod."""
        self.call(self.nodes.kill, namespace, name, "main", "Error")

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Create a namespace and wait for its service account."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}})
        self.wait(lambda: self.store.find(kinds.SERVICE_ACCOUNT, name, "default"))
        return name

    def disturb(self, *faults: Fault) -> None:
        self.call(self.faults.add, *faults)

    def compact(self, keep: int = 0) -> None:
        """Forget the history of changes, so that older versions are 410 Gone."""
        self.call(self.store.compact, keep)

    def objects(self, kind: Kind, namespace: str = "") -> list[Made]:
        return self.call(self.store.all, kind, namespace)

    def history(self, kind: Kind, namespace: str, name: str) -> list[Made]:
        """Return what an object has been, as far as the history has not been compacted."""
        changes = self.call(self.store.since, self.store.compacted)
        made = [change.made for change in changes if change.kind == kind and change.made["metadata"]["name"] == name]
        return [one for one in made if one["metadata"].get("namespace", "") == namespace]

    def wait(self, seen: Callable[[], T], timeout_s: float = 30) -> T:
        """Wait until something is seen, and return it. What lasts a moment may be missed: see history()."""
        if self._loop is None:
            raise RuntimeError("the cluster does not run")

        async def look() -> T:
            with self.store.changes() as queue:
                while not (found := seen()):
                    await queue.get()
                return found

        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(look(), timeout_s), self._loop).result(timeout_s + 5)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the cluster's thread."""
        if self._loop is None:
            raise RuntimeError("the cluster does not run")
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(30)

    async def run(self, ready: threading.Event, stop: asyncio.Event) -> None:
        """Serve until told to stop."""
        self._loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        server = uvicorn.Server(self._uvicorn())
        tasks = [asyncio.create_task(task) for task in self._controllers()]
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        ready.set()
        await stop.wait()
        server.should_exit = server.force_exit = True
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, serving, return_exceptions=True)
        failures = [error for error in (*ended, *self._kubelet.failures) if isinstance(error, Exception)]
        if failures:
            raise failures[0]

    def _controllers(self) -> list[Coroutine[Any, Any, None]]:
        """Return what runs beside the API."""
        return [
            collect_garbage(self.store),
            _give_accounts(self.store, self.api),
            place_pods(self.store),
            Volumes(self.store, self.directory).run(),
            self._kubelet.run(),
            *(controller(self.api.requests, self._lag_s).run() for controller in _AGENT_SANDBOX),
        ]

    def _uvicorn(self) -> uvicorn.Config:
        certificate = self._authority.issue_cert("127.0.0.1", "localhost", key_type=trustme.KeyType.ECDSA)
        chain = self.directory / "api.pem"
        certificate.private_key_and_cert_chain_pem.write_to_path(chain)
        transports = self.api.transports

        class Protocol(HttpToolsProtocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                transports[transport.get_extra_info("peername")] = transport
                super().connection_made(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                transports.pop(self.client or ("", 0), None)
                super().connection_lost(exc)

        return uvicorn.Config(
            self.api, http=Protocol, ws="none", lifespan="off", log_config=None, ssl_certfile=chain, access_log=False
        )


async def _give_accounts(store: Store, api: ApiServer) -> None:
    """Give each namespace its service account, some time after it was made."""
    async for _, namespace in store.follow(kinds.NAMESPACE):
        name = namespace["metadata"]["name"]
        active = store.find(kinds.NAMESPACE, "", name) is not None and "deletionTimestamp" not in namespace["metadata"]
        if active and store.find(kinds.SERVICE_ACCOUNT, name, "default") is None:
            api.requests.create(Target(kinds.SERVICE_ACCOUNT, name), {"metadata": {"name": "default"}})


@contextlib.contextmanager
def running_cluster(
    images: Mapping[str, Image] | None = None, *, agent_sandbox: bool = True, lag_s: float = 0
) -> Iterator[Cluster]:
    """Run a cluster of one node in a thread, with a storage class "standard" and the namespace "default".

    With agent-sandbox its kinds are served, and its controllers run with caches that lag behind the API.
    """
    with tempfile.TemporaryDirectory(prefix="airlock-cluster-") as directory:
        cluster = Cluster(Path(directory), images or {}, agent_sandbox=agent_sandbox, lag_s=lag_s)
        ready = threading.Event()
        stops: Future[Callable[[], object]] = Future()
        outcome: Future[None] = Future()

        async def run() -> None:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            stops.set_result(lambda: loop.call_soon_threadsafe(stop.set))
            await cluster.run(ready, stop)

        def work() -> None:
            try:
                outcome.set_result(asyncio.run(run()))
            except BaseException as error:
                outcome.set_exception(error)
                ready.set()

        thread = threading.Thread(target=work, name="cluster")
        thread.start()
        try:
            if not ready.wait(_START_S) or outcome.done():
                raise RuntimeError("the cluster did not start") from outcome.exception(0) if outcome.done() else None
            cluster.namespace("default")
            cluster.call(cluster.nodes.add, "node-1")
            cluster.apply(storage_class("standard"), _SNAPSHOT_CLASS)
            cluster.apply(
                *(definition(kind) for kind in kinds.KINDS if kind.custom and kind.group not in cluster.api.withheld)
            )
            yield cluster
        finally:
            stops.result(_START_S)()
            thread.join(60)
        outcome.result(0)
