"""A real cluster in place of the one for tests, for `make test-kubernetes`: the same test files run on either.

It has what of a Cluster one can ask of a real one; a test that asks for more, as for a node to fail, is skipped there.
All that it makes has a label of the run, by which `python -m tests.kubernetes.real_cluster` removes it. The cluster
needs no dynamic volumes, no DNS and no kube-proxy: who runs the tests runs them where Pods' addresses are reached.

    AIRLOCK_TEST_KUBECONFIG       the cluster; the account may do everything
    AIRLOCK_TEST_IMAGE            the sandboxes' image, by default airlock-sandbox
    AIRLOCK_TEST_RUNTIME_IMAGE    the daemon's, by default airlock-runtime
    AIRLOCK_TEST_STORAGE_CLASS    a class that makes volumes; by default the tests make them by hand, as hostPath
    AIRLOCK_TEST_GATEWAY_CIDRS    where the tests' connections come from, if it is none of the nodes
    AIRLOCK_TEST_PIDS_LIMITED     1 where podPidsLimit is at most 64: then that is checked
    AIRLOCK_TEST_UNWALLED         1 where Pods are processes: the cluster for tests, by its kubeconfig
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import httpx2
import pytest
from kubernetes_asyncio import client, config

from tests.kubernetes import kinds
from tests.kubernetes.hand_made_volumes import HandMadeVolumes
from tests.kubernetes.kinds import BY_NAME, Kind

Made = dict[str, Any]
T = TypeVar("T")

RUN_LABEL = "airlock.dev/test-run"
_SETTLES = (kinds.NAMESPACE, kinds.ROLE, kinds.ROLE_BINDING, kinds.CLUSTER_ROLE, kinds.CLUSTER_ROLE_BINDING)
# Admission and authorization act by caches, which a real API server fills a moment later.
_SETTLE_S = 1.0
_TOKEN_S = 6 * 3600
_GONE_S = 120.0
# In the order of removal; what has a namespace goes with that.
_OURS = (kinds.NAMESPACE, kinds.VOLUME, kinds.STORAGE_CLASS, kinds.CLUSTER_ROLE_BINDING, kinds.CLUSTER_ROLE)


class RefusedRequest(Exception):
    """The API's answer to a request of the tests, with its status."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status}: {said[:500]}")
        self.status = status


class RealApi:
    """Requests to a cluster as the account of a kubeconfig; may be used from any thread."""

    def __init__(self, kubeconfig: Path) -> None:
        settings = client.Configuration()
        with ThreadPoolExecutor(1) as thread:  # this one may have a loop
            loading = functools.partial(config.load_kube_config, str(kubeconfig), client_configuration=settings)
            thread.submit(lambda: asyncio.run(loading())).result()
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        headers = {"Authorization": token} if (token := settings.api_key.get("BearerToken")) else {}
        self.url = str(settings.host)
        self.authority = Path(settings.ssl_ca_cert).read_text() if settings.ssl_ca_cert else ""
        self._http = httpx2.Client(base_url=self.url, verify=context, headers=headers, timeout=30)

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Made:
        answer = self._http.request(method, path, json=body, params=query)
        if answer.status_code >= 400:
            raise RefusedRequest(answer.status_code, answer.text)
        return dict(answer.json())

    def find(self, kind: Kind, namespace: str, name: str) -> Made | None:
        try:
            return self.ask("GET", _path(kind, namespace, name))
        except RefusedRequest as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Made]:
        about = {"apiVersion": kind.api_version, "kind": kind.kind}
        found = self.ask("GET", _path(kind, namespace), labelSelector=labels)["items"]
        return [{**about, **one} for one in found]

    def create(self, kind: Kind, made: Mapping[str, Any]) -> Made:
        return self.ask("POST", _path(kind, made["metadata"].get("namespace", "")), made)

    def delete(self, kind: Kind, namespace: str, name: str, **options: Any) -> None:
        try:
            self.ask("DELETE", _path(kind, namespace, name), options or None)
        except RefusedRequest as error:
            if error.status != 404:
                raise


def _path(kind: Kind, namespace: str, name: str = "") -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    where = f"/namespaces/{namespace}" if namespace and kind.namespaced else ""
    return f"{root}{where}/{kind.plural}{f'/{name}' if name else ''}"


class _Impossible:
    """What cannot be done to a real cluster: a test that tries is skipped."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"not on a real cluster: {self._what}.{name}")

    def __contains__(self, item: object) -> NoReturn:
        pytest.skip(f"not on a real cluster: {self._what}")


class _NoFaults(_Impossible):
    def clear(self) -> None:
        """There are none."""


class RealCluster:
    """Has what the tests of sandboxes use of a Cluster."""

    real = True
    agent_sandbox = False
    """Whether sandboxes are Sandboxes of agent-sandbox now."""

    def __init__(self, kubeconfig: Path, run: str) -> None:
        self.api_of_run = RealApi(kubeconfig)
        self.url = self.api_of_run.url
        self.run = run
        self.walled = os.environ.get("AIRLOCK_TEST_UNWALLED") != "1"
        self.pids_limited = os.environ.get("AIRLOCK_TEST_PIDS_LIMITED") == "1"
        self.nodes, self.store, self.access, self.api = (
            _Impossible(what) for what in ("nodes", "store", "access", "api")
        )
        self.faults = _NoFaults("faults")
        self.images = _Impossible("images")
        self._volumes: HandMadeVolumes | None = None
        storage_class = os.environ.get("AIRLOCK_TEST_STORAGE_CLASS", "")
        if not storage_class:
            self._volumes = HandMadeVolumes(self.api_of_run, run, {RUN_LABEL: run})
            storage_class = self._volumes.storage_class
        self.site_options: Mapping[str, Any] = {"storage_class": storage_class, "gateway_cidrs": self._cidrs()}

    def serves(self, kind: Kind) -> bool:
        """Return whether objects of a kind can be made."""
        try:
            self.api_of_run.list(kind, "default")
        except RefusedRequest:
            return False
        return True

    def close(self) -> None:
        """Remove all of the run."""
        try:
            sweep(self.api_of_run, self.run)
        finally:
            if self._volumes is not None:
                self._volumes.close()
            self.api_of_run.close()

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"not on a real cluster: {name}")

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}})
        self.wait(lambda: self.api_of_run.find(kinds.SERVICE_ACCOUNT, name, "default"))
        return name

    def grant(
        self, namespace: str, account: str, rules: Sequence[Mapping[str, Any]], *, everywhere: bool = False
    ) -> str:
        group = "rbac.authorization.k8s.io"
        scope, name = "Cluster" if everywhere else "", f"{namespace}-{account}"
        metadata = {"name": name, "namespace": namespace}
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}},
            {"apiVersion": f"{group}/v1", "kind": f"{scope}Role", "metadata": metadata, "rules": list(rules)},
            {"apiVersion": f"{group}/v1", "kind": f"{scope}RoleBinding", "metadata": metadata,
             "roleRef": {"apiGroup": group, "kind": f"{scope}Role", "name": name},
             "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]},
        )  # fmt: skip
        about = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = f"{_path(kinds.SERVICE_ACCOUNT, namespace, account)}/token"
        answer = self.api_of_run.ask("POST", path, {**about, "spec": {"expirationSeconds": _TOKEN_S}})
        return str(answer["status"]["token"])

    def write_kubeconfig(self, path: Path, token: str = "") -> Path:
        cluster = {"server": self.url, "certificate-authority": str(path.with_suffix(".ca"))}
        path.with_suffix(".ca").write_text(self.api_of_run.authority)
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        path.write_text(json.dumps(found))
        return path

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        settle = False
        for manifest in manifests:
            kind = BY_NAME[manifest["apiVersion"], manifest["kind"]]
            labels = {**manifest["metadata"].get("labels", {}), RUN_LABEL: self.run}
            metadata = {**manifest["metadata"], "labels": labels}
            if not kind.namespaced:
                metadata.pop("namespace", None)
            made, namespace = {**manifest, "metadata": metadata}, metadata.get("namespace", "")
            if self.api_of_run.find(kind, namespace, metadata["name"]) is None:
                self.api_of_run.create(kind, made)
            else:
                self.api_of_run.ask("PUT", _path(kind, namespace, metadata["name"]), made)
            if kind == kinds.QUOTA:
                self.wait(functools.partial(self._counts, namespace, metadata["name"]))
            settle = settle or kind in _SETTLES
        if settle and self.walled:
            time.sleep(_SETTLE_S)

    def _counts(self, namespace: str, quota: str) -> bool:
        made = self.api_of_run.find(kinds.QUOTA, namespace, quota) or {}
        return bool((made.get("status") or {}).get("hard"))

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        self.api_of_run.delete(kind, namespace, name)

    def kill_pod(self, namespace: str, name: str) -> None:
        """Have a Pod end at once: no account may kill its processes alone."""
        self.api_of_run.delete(kinds.POD, namespace, name, gracePeriodSeconds=0)

    def objects(self, kind: Kind, namespace: str = "") -> list[Made]:
        return self.api_of_run.list(kind, namespace)

    def wait(self, seen: Callable[[], T], timeout_s: float = 60) -> T:
        deadline_s = time.monotonic() + timeout_s
        while not (found := seen()):
            if time.monotonic() > deadline_s:
                raise TimeoutError
            time.sleep(0.05)
        return found

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def _cidrs(self) -> list[str]:
        """Return where connections to Pods come from: a node, also by its address in the Pods' network."""
        if given := os.environ.get("AIRLOCK_TEST_GATEWAY_CIDRS"):
            return given.split(",")
        return sorted({*self._node_cidrs()})

    def _node_cidrs(self) -> Iterator[str]:
        for node in self.api_of_run.list(kinds.NODE):
            for address in node["status"].get("addresses") or ():
                if address["type"] == "InternalIP":
                    yield str(ip_network(address["address"]))
            if pods := node["spec"].get("podCIDR"):
                network = ip_network(pods)
                family = socket.AF_INET6 if network.version == 6 else socket.AF_INET
                with socket.socket(family, socket.SOCK_DGRAM) as way:
                    way.connect((str(network[2]), 9))  # nothing is sent
                    yield str(ip_network(way.getsockname()[0]))


def sweep(api: RealApi, run: str) -> None:
    """Remove all that has the label of a run, and wait until it is gone.

    First the namespaces that gateways made for tenants: they lack the label, and begin with its namespace.
    """
    labelled, deadline_s = f"{RUN_LABEL}={run}", time.monotonic() + _GONE_S
    prefixes = tuple(f"airlock-{one['metadata']['name']}-" for one in api.list(kinds.NAMESPACE, labels=labelled))
    while time.monotonic() < deadline_s:
        tenants = [one for one in api.list(kinds.NAMESPACE) if one["metadata"]["name"].startswith(prefixes)]
        left = [(kinds.NAMESPACE, one) for one in tenants]
        left += [(kind, one) for kind in _OURS for one in api.list(kind, labels=labelled)]
        if not left:
            return
        for kind, made in left:
            if "deletionTimestamp" not in made["metadata"]:
                api.delete(kind, "", made["metadata"]["name"])
        time.sleep(0.2)
    raise TimeoutError(f"there are still objects with the label {labelled} after {_GONE_S:.0f} s")


def kubeconfig_of_real_cluster() -> Path | None:
    return Path(given) if (given := os.environ.get("AIRLOCK_TEST_KUBECONFIG")) else None


@functools.cache
def real_cluster() -> RealCluster:
    """Return the real cluster of this process; what the tests make of it is removed when the process ends."""
    kubeconfig = kubeconfig_of_real_cluster()
    if kubeconfig is None:
        raise RuntimeError("AIRLOCK_TEST_KUBECONFIG names no cluster")
    cluster = RealCluster(kubeconfig, os.environ.get("AIRLOCK_TEST_RUN") or secrets.token_hex(4))
    atexit.register(cluster.close)
    return cluster


def main() -> None:
    """Remove all that a run has left, whatever became of it."""
    kubeconfig, run = kubeconfig_of_real_cluster(), os.environ.get("AIRLOCK_TEST_RUN")
    if kubeconfig is None or not run:
        raise SystemExit("set AIRLOCK_TEST_KUBECONFIG and AIRLOCK_TEST_RUN")
    api = RealApi(kubeconfig)
    try:
        sweep(api, run)
    finally:
        api.close()


if __name__ == "__main__":
    main()
