"""The checks of `airlock doctor`: this machine, a configuration and its engine."""

import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.cli.doctor_config import (
    common_findings,
    database_finding,
    directory_findings,
    instance_of,
    is_migrated,
    kernel_findings,
    model_findings,
    policies_in_force,
    tenant_findings,
)
from gateway.cli.finding import Finding
from gateway.cli.terminal import SlowWork
from gateway.config.config import Config, SandboxSettings
from gateway.errors import AirlockError, Misconfigured
from gateway.sandboxes.docker_access import relay_site
from gateway.support.clock import make_id
from gateway.support.version import airlock_version
from gateway.tenancy.tenants import Tenant, load_tenants
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.engine_facts import EngineFacts
from sandbox.engines.posture import MOVING_VERSION, has_landlock
from sandbox.errors import SandboxError
from sandbox.file_rules import FILE_RULES_LANDLOCK_VERSION
from sandbox.sandbox import Sandbox, SandboxSpec

_OPEN_FILES_WANTED = 4096
_RUNTIME = "airlock-runtime"
_RUNTIMES: Sequence[tuple[str, Literal["warning", "failed"], str]] = (
    ("runc", "failed", "install runc"),
    ("runsc", "warning", "install gVisor and register it (docs/deployment.md)"),
)
_CHANNEL = Finding("channel", "ok", "over TCP with mutual TLS, by a relay beside the sandbox")
_IMAGES = {"airlock-sandbox": "the file system that tool code sees", _RUNTIME: "the sandbox daemon"}


@dataclass
class Checks:
    """The checks and their findings; `config` is None unless a configuration was named and loads.

    `instance` is that of the gateways of its database, None if none has served that. `remote` says that the engine is
    on another machine.
    """

    slow: SlowWork
    engine_url: str | None
    named_in: str = "--engine-url"
    config: Config | None = None
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    migrated: bool = False
    instance: str | None = None
    remote: bool = False
    findings: list[Finding] = field(default_factory=list)

    async def run(self, path: Path | None) -> None:
        self.slow.at("this machine")
        self.findings += [Finding("airlock", "ok", airlock_version()), *_python_and_disk(), _open_files()]
        if path is not None:
            self.slow.at("the configuration, its policies and its database")
            await self._check_config(path)
            if self.config is not None:
                self.slow.at("the models")
                self.findings += await model_findings(self.config)
        if self.engine_url is None and path is not None:
            if self.config is None:
                # The gateway may use another engine than the default, so checking the default would prove nothing.
                unknown = "unknown: the configuration does not load"
                fix = "fix the configuration, or name the engine with --engine-url"
                self.findings += [Finding("engine", "warning", unknown, fix), Finding("sandbox", "warning", unknown)]
                return
            if self.config.sandbox.engine == "memory":
                detail = "sandbox.engine is memory: commands run unconfined on this machine"
                self.findings.append(Finding("engine", "warning", detail, "use `engine: docker` except in development"))
                return
            if self.config.sandbox.engine == "kubernetes":
                self.findings += await _cluster_findings(self.config, self.tenants, self.slow, self.instance)
                return
            if self.config.sandbox.engine_url is not None:
                self.engine_url, self.named_in = self.config.sandbox.engine_url, f"sandbox.engine_url of {path}"
        await self._check_engine()

    async def _check_config(self, path: Path) -> None:
        try:
            # The configuration stays known even if only a policy does not load.
            self.config = Config.load(path)
            self.tenants = load_tenants(self.config)
            versions = ", ".join(f"{tenant.name} {tenant.policy.version}" for tenant in self.tenants.values())
            self.findings.append(Finding("configuration", "ok", f"loads; policies: {versions}"))
        except Misconfigured as error:
            self.findings.append(Finding("configuration", "failed", "does not load", str(error)))
        if self.config is None:
            return
        database = database_finding(self.config)
        self.findings.append(database)
        if database.state != "ok":
            return
        self.migrated = is_migrated(self.config)
        try:
            self.tenants, drifted = await policies_in_force(self.config, self.tenants, migrated=self.migrated)
            self.findings += drifted
            self.instance = await instance_of(self.config) if self.migrated else None
        except (AirlockError, OSError) as error:
            detail = "unknown; the next checks use the files"
            self.findings.append(Finding("policies in force", "failed", detail, str(error)))

    async def _check_engine(self) -> None:
        with tempfile.TemporaryDirectory(prefix="airlock-doctor-") as directory:
            settings = SandboxSettings() if self.config is None else self.config.sandbox
            settings = settings.model_copy(update={"engine_url": self.engine_url})
            try:
                relays = relay_site(settings, Path(directory) / "authority.pem")
            except Misconfigured as error:
                self.findings.append(Finding("engine", "failed", "is on another machine, half configured", str(error)))
                return
            self.remote = relays is not None
            requests = DockerRequests(self.engine_url, self.named_in, relays=relays)
            engine = DockerEngine(
                instance=make_id("doctor"),
                channel_root=_channel_root(self.config) or Path(directory),
                runtime_image=_RUNTIME,
                requests=requests,
            )
            self.slow.at("the Docker engine")
            try:
                facts = await engine.describe()
            except SandboxError as error:
                self.findings.append(Finding("engine", "failed", "does not answer", str(error)))
                return
            try:
                if self.config is not None and self.migrated:
                    self.findings += await directory_findings(self.config, await engine.id(), requests)
                if self.config is not None and self.tenants:
                    async for finding in tenant_findings(self.config, self.tenants, facts, requests):
                        self.findings.append(finding)
                await self._check_sandboxes(engine, facts)
            except SandboxError as error:
                self.findings.append(Finding("engine", "failed", "stopped answering", str(error)))
            except AirlockError as error:
                self.findings.append(Finding("database", "failed", "stopped answering", str(error)))
            finally:
                await engine.close()

    async def _check_sandboxes(self, engine: DockerEngine, facts: EngineFacts) -> None:
        """Check what sandboxes need of the engine, and create one with each runtime that a policy names."""
        detail = f"Docker {facts.version}, API {facts.api_version}, {facts.storage_driver}"
        filters = "the engine filters system calls" if facts.seccomp else "the engine does not support it"
        fix = "use an engine and a kernel that support seccomp"
        seccomp = Finding.of("seccomp", facts.seccomp, filters, fix, "failed")
        self.findings += [Finding("engine", "ok", detail), seccomp]
        if not self.remote:
            self.findings.append(_landlock(has_landlock))
        for image, role in _IMAGES.items():
            here = image in facts.images
            detail = role if here else f"{role}: missing"
            self.findings.append(Finding.of(f"image {image}", here, detail, "run `airlock images build`", "failed"))
        for runtime, otherwise, fix in _RUNTIMES:
            registered = f"{'' if runtime in facts.runtimes else 'not '}registered with the engine"
            found = Finding.of(f"runtime {runtime}", runtime in facts.runtimes, registered, fix, otherwise)
            self.findings.append(found)
        if set(_IMAGES) <= set(facts.images):
            self.slow.at("a trial sandbox")
            named = {tenant.sandbox_spec("doctor").runtime for tenant in self.tenants.values()}
            for runtime in {"runc": None, **dict.fromkeys(sorted(named))}:
                if runtime in facts.runtimes:
                    self.findings += await _trial(engine, runtime, remote=self.remote)
            async for finding in kernel_findings(engine, self.tenants, facts):
                self.findings.append(finding)


async def _cluster_findings(
    config: Config, tenants: Mapping[str, Tenant], slow: SlowWork, instance: str | None
) -> Sequence[Finding]:
    try:
        # Loaded on demand: its client is an extra of the distribution.
        from gateway.cli.doctor_cluster import ClusterChecks
    except ModuleNotFoundError as error:
        detail = f"sandbox.engine: kubernetes needs the package {error.name}"
        return [Finding("cluster", "failed", detail, "install `airlock-agent-gateway[kubernetes]`")]
    return [*await ClusterChecks(config, tenants, slow, instance).run(), *await common_findings(config, tenants)]


def _channel_root(config: Config | None) -> Path | None:
    """Return the configuration's channel directory, the only one that an engine proxy allows.

    None if it does not exist: the gateway might not be able to use one that this command creates.
    """
    root = config.resolved_channel_dir() if config is not None else None
    return root if root is not None and os.access(root, os.W_OK | os.X_OK) else None


async def _trial(engine: DockerEngine, runtime: str, *, remote: bool) -> list[Finding]:
    """Create a sandbox; the engine refuses one that is weaker than requested, so success proves its isolation."""
    what = "sandbox" if runtime == "runc" else f"sandbox {runtime}"
    try:
        spec = SandboxSpec(tenant="doctor", thread=f"doctor-{runtime}", image="airlock-sandbox", runtime=runtime)
        sandbox = await engine.create(spec)
    except SandboxError as error:
        return [Finding(what, "failed", "a trial sandbox did not start", str(error))]
    try:
        ran = await sandbox.shell.execute(
            "id -u", timeout_s=10, call_id="doctor", limit_chars=1000, head_chars=100, tail_chars=100
        )
        said = b"".join(piece.data for piece in ran.output).decode("utf-8", "replace").strip()
        if ran.exit_code == 0 and said.isdigit() and said != "0":
            found = [Finding(what, "ok", f"a trial sandbox ran a command as user {said}")]
        else:
            found = [Finding(what, "failed", f"a trial command ended with {ran.outcome}: {said}", ran.message)]
        if runtime != "runc":
            return [*found, await _limits_outside(engine, sandbox)]
        posture, source = sandbox.posture, "read back from the kernel"
        isolation = "no network, no capabilities, no-new-privileges, seccomp, read-only root"
        return [
            *found,
            Finding("limit memory", "ok", f"{posture.memory_limit_bytes // 1024**2} MiB, {source}"),
            Finding("limit processes", "ok", f"{posture.pids_limit}, {source}"),
            Finding("limit cpu", "ok", f"{posture.cpu_limit_millis / 1000:g} CPUs, {source}"),
            Finding("isolation", "ok", isolation),
            _workspace(engine),
            *([_landlock(lambda version: posture.landlock_version >= version), _CHANNEL] if remote else []),
        ]
    finally:
        await engine.remove(sandbox.id)
        await engine.remove_workspace(spec.tenant, spec.thread)


async def _limits_outside(engine: DockerEngine, sandbox: Sandbox) -> Finding:
    """Check the host's control groups for the limits of a sandbox whose own kernel does not report them."""
    spec = sandbox.spec
    what, wanted = f"limits {spec.runtime}", spec.limits.memory_bytes
    live = next((one for one in await engine.listed(spec.tenant) if one.id == sandbox.id), None)
    used = None if live is None else await engine.usage(live)
    if used is not None and used.memory_limit_bytes is not None and used.memory_limit_bytes <= wanted:
        detail = f"{used.memory_limit_bytes // 1024**2} MiB of memory, set in the host's control groups"
        return Finding(what, "ok", detail)
    fix = f"register {spec.runtime} without --ignore-cgroups (docs/deployment.md); until then no limit is enforced"
    return Finding(what, "warning", "the host's control groups set no limit", fix)


def _workspace(engine: DockerEngine) -> Finding:
    by_engine = engine.bounds_workspaces
    by_daemon = "enforced by the sandbox daemon, which may react some hundred MiB late (docs/limits.md)"
    fix = "for an exact limit, put the engine's data directory on XFS mounted with pquota"
    detail = "enforced by the engine's disk" if by_engine else by_daemon
    return Finding.of("limit workspace", by_engine, detail, fix, "warning")


def _python_and_disk() -> list[Finding]:
    ok, free = sys.version_info >= (3, 11), shutil.disk_usage("/").free
    detail, fix = f"{free / 1024**3:.1f} GiB free on /", "free some space for images and workspaces"
    return [
        Finding.of("python", ok, platform.python_version(), "install Python 3.11", "failed"),
        Finding.of("disk", free >= 5 * 1024**3, detail, fix, "warning"),
    ]


def _open_files() -> Finding:
    """Check the hard limit, to which `airlock serve` raises its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ok = hard == resource.RLIM_INFINITY or hard >= _OPEN_FILES_WANTED
    fix = f"raise the limit to {_OPEN_FILES_WANTED:,} or more (`ulimit -Hn`, LimitNOFILE) for runs and sandboxes"
    detail = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,} at most"
    return Finding.of("open files", ok, detail, fix, "warning")


def _landlock(has_landlock: Callable[[int], bool]) -> Finding:
    """Check the kernel of the engine's machine, by what it says of itself or what a sandbox on it says."""
    fix = "use Linux 6.2 or newer, or `enforcement: reading` in every policy"
    if has_landlock(FILE_RULES_LANDLOCK_VERSION):
        return Finding("landlock", "ok", "enforcement: kernel works")
    detail = "no command starts under a policy with enforcement: kernel"
    if not has_landlock(MOVING_VERSION):
        detail += ", and tool code can get its own sandbox killed for memory"
    return Finding("landlock", "warning", detail, fix)
