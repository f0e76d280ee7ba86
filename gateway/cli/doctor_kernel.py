"""The check of `enforcement: kernel` by `airlock doctor`: Landlock, and the programs that policies name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.cli.finding import Finding

if TYPE_CHECKING:
    from gateway.tenancy.tenants import Tenant
    from sandbox.engines.docker.docker_engine import DockerEngine, EngineFacts


async def kernel_findings(
    engine: DockerEngine, tenants: Mapping[str, Tenant], facts: EngineFacts
) -> AsyncIterator[Finding]:
    """Yield a finding for each tenant whose policy has `enforcement: kernel` and whose image is on the engine."""
    from gateway.tool_calls.program_check import LANDLOCK_VERSION, missing_programs
    from sandbox.errors import SandboxError

    for name, tenant in tenants.items():
        spec = replace(tenant.sandbox_spec("doctor-kernel"), tenant="doctor")
        if tenant.policy.file_rules is None or spec.refused or spec.image not in facts.images:
            continue
        what = f"enforcement {name}"
        try:
            sandbox = await engine.create(spec)
            try:
                has_landlock = sandbox.posture.landlock_version >= LANDLOCK_VERSION
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
