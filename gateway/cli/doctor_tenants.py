"""What `airlock doctor --config` says of each tenant: whether the engine can make what its policy asks for.

The policies are those in force (doctor_policies.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.finding import Finding

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.tenancy.tenants import Tenant
    from sandbox.engines.docker.docker_requests import DockerRequests, EngineFacts
    from sandbox.engines.pooled_sandbox import SpareKind
    from sandbox.sandbox import SandboxSpec

_RUNTIME_MEND = "register it with the engine, as docs/deployment.md says, or write `runtime: runc` in its policy"


async def tenant_findings(
    config: Config, tenants: Mapping[str, Tenant], facts: EngineFacts, requests: DockerRequests
) -> AsyncIterator[Finding]:
    """Yield a finding for each tenant, the pool, and where files are kept; raises EngineUnavailable."""
    from sandbox.engines.docker.engine_disk import EngineDisk
    from sandbox.engines.pooled_sandbox import SpareKind

    for name, tenant in tenants.items():
        yield await _tenant(f"tenant {name}", tenant.sandbox_spec("doctor"), config, facts, requests)
        subagents = _subagents(name, config, tenant)
        if subagents is not None:
            yield subagents
    yield _pool(config, {SpareKind.of(tenant.sandbox_spec("doctor")) for tenant in tenants.values()})
    yield _reserve(await EngineDisk(requests).free_bytes(), config.sandbox.disk_reserve_mib)
    yield _snapshots(config.resolved_snapshots_dir())


def _subagents(name: str, config: Config, tenant: Tenant) -> Finding | None:
    from gateway.cli.subagent_rules import MEND, refuses_subagents, said, with_subagents

    agents = with_subagents(config.agents_of(name))
    if not agents or not refuses_subagents(tenant.policy.tenant_document, tenant.policy.operator_document):
        return None
    return Finding(f"subagents {name}", "warning", said(agents), MEND)


def _reserve(free_bytes: int, reserve_mib: int) -> Finding:
    detail = f"{free_bytes // 1024**2:,} MiB free on the engine's disk, {reserve_mib:,} MiB of reserve"
    if free_bytes >= reserve_mib * 1024**2:
        return Finding("reserve", "ok", detail)
    mend = "make room, or lower sandbox.disk_reserve_mib: until then no file in a sandbox may grow"
    return Finding("reserve", "failed", detail, mend)


def _snapshots(directory: Path) -> Finding:
    there = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding("snapshots", "ok", f"kept in {directory}")
    except OSError as error:
        mend = f"mend snapshots_dir: {directory}"
        return Finding("snapshots", "failed", f"nothing can be written in {there}: {error.strerror}", mend)


def _pool(config: Config, kinds: Collection[SpareKind]) -> Finding:
    limit, always = config.sandbox.pool_limit, config.sandbox.pool_min
    if not limit:
        return Finding("pool", "ok", "no sandbox is made before somebody asks for one (sandbox.pool_limit: 0)")
    if len(kinds) > limit:
        mend = "raise sandbox.pool_limit, or have policies agree on image, runtime and size"
        return Finding("pool", "warning", f"{len(kinds)} sizes of sandboxes share a pool of {limit}", mend)
    return Finding("pool", "ok", f"{always} to {limit} sandboxes of each process are ready, some 13 MiB each")


async def _tenant(
    what: str, spec: SandboxSpec, config: Config, facts: EngineFacts, requests: DockerRequests
) -> Finding:
    from sandbox.engines.docker.docker_requests import inspect_image
    from sandbox.engines.docker.image_pulls import pullable
    from sandbox.errors import ImageMissing, SandboxUnavailable

    if spec.refused:
        return Finding(what, "failed", f"image {spec.image} is not allowed", spec.refused)
    if spec.runtime not in facts.runtimes:
        return Finding(what, "failed", f"the engine has no runtime {spec.runtime}", _RUNTIME_MEND)
    try:
        await requests.ask(inspect_image, spec.image)
    except ImageMissing as error:
        if config.sandbox.pull == "never" or not pullable(spec.image):
            return Finding(what, "failed", f"image {spec.image} is not on the engine", str(error))
        mend = f"`docker pull {spec.image}`; until then its first call waits for that, or is told to come again"
        return Finding(what, "warning", f"image {spec.image} is not on the engine: the first call pulls it", mend)
    except SandboxUnavailable as error:
        return Finding(what, "failed", f"image {spec.image} cannot be looked at", str(error))
    return Finding(what, "ok", f"image {spec.image} and runtime {spec.runtime} are on the engine")
