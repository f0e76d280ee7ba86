"""The checks of each tenant by `airlock doctor`: whether the engine can run the sandboxes of its policy in force."""

import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from gateway.cli.doctor_config import Finding
from gateway.cli.subagent_rules import FIX, problem, refuses_subagents, with_subagents
from gateway.config.config import Config
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.thread_sandbox import missing_programs
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests, EngineFacts, inspect_image
from sandbox.engines.docker.engine_disk import EngineDisk
from sandbox.engines.docker.image_pulls import pullable
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.errors import ImageMissing, SandboxError, SandboxUnavailable
from sandbox.file_rules import FILE_RULES_LANDLOCK_VERSION
from sandbox.sandbox import SandboxSpec

_RUNTIME_FIX = "register it with the engine (docs/deployment.md), or write `runtime: runc` in its policy"


async def tenant_findings(
    config: Config, tenants: Mapping[str, Tenant], facts: EngineFacts, requests: DockerRequests
) -> AsyncIterator[Finding]:
    """Yield a finding for each tenant, the pool, the disk and the snapshots. Raises EngineUnavailable."""
    for name, tenant in tenants.items():
        yield await _tenant(f"tenant {name}", tenant.sandbox_spec("doctor"), config, facts, requests)
        subagents = _subagents(name, config, tenant)
        if subagents is not None:
            yield subagents
    yield _pool(config, {PoolKind.of(tenant.sandbox_spec("doctor")) for tenant in tenants.values()})
    yield _reserve(await EngineDisk(requests).free_bytes(), config.sandbox.disk_reserve_mib)
    yield _snapshots(config.resolved_snapshots_dir())


def _subagents(name: str, config: Config, tenant: Tenant) -> Finding | None:
    agents = with_subagents(config.agents_of(name))
    if not agents or not refuses_subagents(tenant.policy.tenant_document, tenant.policy.operator_document):
        return None
    return Finding(f"subagents {name}", "warning", problem(agents), FIX)


def _reserve(free_bytes: int, reserve_mib: int) -> Finding:
    detail = f"{free_bytes // 1024**2:,} MiB free on the engine's disk, {reserve_mib:,} MiB reserved"
    if free_bytes >= reserve_mib * 1024**2:
        return Finding("reserve", "ok", detail)
    fix = "free space, or lower sandbox.disk_reserve_mib; until then no file in a sandbox can grow"
    return Finding("reserve", "failed", detail, fix)


def _snapshots(directory: Path) -> Finding:
    there = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding("snapshots", "ok", f"stored in {directory}")
    except OSError as error:
        fix = f"make snapshots_dir writable: {directory}"
        return Finding("snapshots", "failed", f"cannot write to {there}: {error.strerror}", fix)


def _pool(config: Config, kinds: Collection[PoolKind]) -> Finding:
    limit, always = config.sandbox.pool_limit, config.sandbox.pool_min
    if not limit:
        return Finding("pool", "ok", "no sandboxes are created in advance (sandbox.pool_limit: 0)")
    if len(kinds) > limit:
        fix = "raise sandbox.pool_limit, or use the same image, runtime and size in more policies"
        return Finding("pool", "warning", f"{len(kinds)} kinds of sandboxes share a pool of {limit}", fix)
    return Finding("pool", "ok", f"each process keeps {always} to {limit} sandboxes ready, about 13 MiB each")


async def _tenant(
    what: str, spec: SandboxSpec, config: Config, facts: EngineFacts, requests: DockerRequests
) -> Finding:
    if spec.refused:
        return Finding(what, "failed", f"image {spec.image} is not allowed", spec.refused)
    if spec.runtime not in facts.runtimes:
        return Finding(what, "failed", f"the engine has no runtime {spec.runtime}", _RUNTIME_FIX)
    try:
        await requests.ask(inspect_image, spec.image)
    except ImageMissing as error:
        if config.sandbox.pull == "never" or not pullable(spec.image):
            return Finding(what, "failed", f"image {spec.image} is not on the engine", str(error))
        fix = f"run `docker pull {spec.image}`; otherwise the first call waits for the pull or must be repeated"
        return Finding(what, "warning", f"image {spec.image} is not on the engine: the first call pulls it", fix)
    except SandboxUnavailable as error:
        return Finding(what, "failed", f"image {spec.image} cannot be inspected", str(error))
    return Finding(what, "ok", f"image {spec.image} and runtime {spec.runtime} are on the engine")


async def kernel_findings(
    engine: DockerEngine, tenants: Mapping[str, Tenant], facts: EngineFacts
) -> AsyncIterator[Finding]:
    """Yield a finding for each tenant whose policy has `enforcement: kernel` and whose image is on the engine."""
    for name, tenant in tenants.items():
        spec = replace(tenant.sandbox_spec("doctor-kernel"), tenant="doctor")
        if tenant.policy.file_rules is None or spec.refused or spec.image not in facts.images:
            continue
        what = f"enforcement {name}"
        try:
            sandbox = await engine.create(spec)
            try:
                has_landlock = sandbox.posture.landlock_version >= FILE_RULES_LANDLOCK_VERSION
                missing = await missing_programs(sandbox.shell, tenant.policy)
            finally:
                await engine.remove(sandbox.id)
                await engine.remove_workspace(spec.tenant, spec.thread)
        except SandboxError as error:
            yield Finding(what, "failed", "a trial sandbox did not start", str(error))
            continue
        if not has_landlock:
            fix = "use Linux 6.2 or newer with Landlock, or write `enforcement: reading` in its policy"
            yield Finding(what, "failed", "enforcement: kernel, and sandboxes have no Landlock: no command starts", fix)
            continue
        detail = f"image {spec.image} does not have {', '.join(missing)}" if missing else "by the kernel (Landlock)"
        fix = "install these programs in the image, or remove them from the policy"
        yield Finding.of(what, not missing, detail, fix, "warning")
