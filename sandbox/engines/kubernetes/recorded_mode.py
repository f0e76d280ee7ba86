"""The mode of an instance, recorded by its first gateway: what a cluster serves may change under gateways that run.

With `mode: auto` that gateway records what the cluster serves, and each later one does as it says: those that have
started before agent-sandbox was installed, and those that start after it, make the same. A mode that the operator names
replaces what is recorded. The record is a Lease beside those of the threads, which takes no further permission.
"""

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from sandbox.engines.kubernetes.kubernetes_requests import Conflict, KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.preflight import Preflight
from sandbox.engines.kubernetes.resources import LEASES, SANDBOXES, Made
from sandbox.errors import SandboxUnavailable

log = logging.getLogger(__name__)

Mode: TypeAlias = Literal["pods", "agent-sandbox"]

_KIND = "mode"
_MODE = "airlock.dev/mode"
_ATTEMPTS = 8


async def uses_sandboxes(requests: KubernetesRequests, site: Site) -> bool:
    """Return what Preflight.uses_sandboxes() does, and for "auto" the same in all processes of an instance."""
    for _ in range(_ATTEMPTS):
        found, recorded = await _recorded(requests, site)
        if site.mode == "auto" and recorded is not None:
            return await _in_mode(requests, site, recorded)
        sandboxes = await Preflight(requests, site).uses_sandboxes()
        mode: Mode = "agent-sandbox" if sandboxes else "pods"
        if recorded == mode or (found is None and site.mode != "auto"):
            return sandboxes
        with suppress(Conflict):
            await _write(requests, site, found, mode)
            log.info("the sandboxes of this installation are %s from now on", mode)
            return sandboxes
    raise SandboxUnavailable(f"Lease {site.name(_KIND)} in namespace {site.namespace!r} changes too often: try again")


async def as_recorded(requests: KubernetesRequests, site: Site) -> Site:
    """Return a site with the mode of its gateways in place of "auto", where one is recorded; record nothing."""
    if site.mode != "auto":
        return site
    _, recorded = await _recorded(requests, site)
    return replace(site, mode=recorded or site.mode)


async def _recorded(requests: KubernetesRequests, site: Site) -> tuple[Made | None, Mode | None]:
    """Return the Lease of the mode, if there is one, and what it says, if that is a mode."""
    found = await requests.get(LEASES, site.namespace, site.name(_KIND))
    said = None if found is None else (found["metadata"].get("annotations") or {}).get(_MODE)
    return found, said if said in get_args(Mode) else None


async def _in_mode(requests: KubernetesRequests, site: Site, recorded: Mode) -> bool:
    preflight = Preflight(requests, replace(site, mode=recorded))
    where = f"Lease {site.name(_KIND)} in namespace {site.namespace!r}"
    if recorded == "agent-sandbox":
        try:
            return await preflight.uses_sandboxes()
        except SandboxUnavailable as error:
            raise SandboxUnavailable(f"{error}. {where} says that this is an installation of agent-sandbox") from error
    if SANDBOXES.version in await preflight.served(SANDBOXES.group):
        log.warning(
            "the cluster serves %s/%s, and sandboxes stay Pods, as %s says: set sandbox.kubernetes.mode to "
            "agent-sandbox to change that, or to pods to have it so",
            SANDBOXES.group,
            SANDBOXES.version,
            where,
        )
    return False


async def _write(requests: KubernetesRequests, site: Site, found: Made | None, mode: Mode) -> None:
    """Record a mode in place of what was found; raises Conflict if another process has done so meanwhile."""
    metadata = {"name": site.name(_KIND), "labels": site.labels(_KIND), "annotations": {_MODE: mode}}
    lease: Made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    if found is None:
        await requests.create(LEASES, site.namespace, lease)
    else:
        metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        await requests.update(LEASES, site.namespace, lease)
