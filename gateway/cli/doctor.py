"""`airlock doctor`: what works on this machine, and how to mend what does not."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from gateway.cli.command import Cli
from gateway.cli.doctor_database import database_finding, is_migrated
from gateway.cli.doctor_directories import directory_findings
from gateway.cli.doctor_tenants import tenant_findings
from gateway.cli.finding import Finding
from gateway.cli.rows import Rows
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import EXIT_BAD_NEWS, out
from gateway.support.version import airlock_version

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.tenancy.tenants import Tenant
    from sandbox.engines.docker.docker_engine import DockerEngine, EngineFacts
    from sandbox.sandbox import Sandbox

_DISK_WANTED_BYTES = 5 * 1024**3
_OPEN_FILES_WANTED = 4096
_PYTHON_WANTED = (3, 11)
_STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}


async def doctor(
    cli: Cli,
    *,
    engine_url: Annotated[str | None, typer.Option(help="Docker engine to look at; default as for docker.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration to look at, with its policies and engine.")] = None,
) -> None:
    """Look at Python, disk, open files, engine, images, runtimes; try limits on a sandbox. Exits 1 when one failed."""
    with SlowWork("looking at") as slow:
        findings = [finding async for finding in _look(engine_url, config, slow)]
    ok = all(finding.state != "failed" for finding in findings)
    cli.show({"ok": ok, "findings": findings}, lambda _: _print(findings))
    if not ok:
        raise typer.Exit(EXIT_BAD_NEWS)


def _print(findings: list[Finding]) -> None:
    rows = [(finding.what, Text(finding.state, _STYLES[finding.state]), finding.detail) for finding in findings]
    out.print(Rows(("what", "state", "detail"), rows))
    for finding in findings:
        if finding.mend:
            out.print(f"\n{finding.what}:", style="bold", end=" ")
            out.print(finding.mend)


@dataclass
class _Subject:
    """What is looked at besides this machine: an engine, and what a configuration that loads says."""

    engine_url: str | None
    named_in: str = "--engine-url"
    config: Config | None = None
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    migrated: bool = False


async def _look(engine_url: str | None, path: Path | None, slow: SlowWork) -> AsyncIterator[Finding]:
    slow.at("this machine")
    yield Finding("airlock", "ok", airlock_version())
    yield _python()
    yield _disk()
    yield _open_files()
    subject = _Subject(engine_url)
    if path is not None:
        slow.at("the configuration, its policies and its database")
        async for finding in _configured(path, subject):
            yield finding
        if engine_url is None and subject.config is None:
            # The default engine may be another one than the gateway would use, and its being well no comfort.
            yield _not_known("engine", "mend the configuration, or name the engine: --engine-url")
            yield _not_known("sandbox")
            return
    config = subject.config
    if engine_url is None and config is not None:
        if config.sandbox.engine == "memory":
            detail = "sandbox.engine is memory: commands run on this machine, unconfined"
            yield Finding("engine", "warning", detail, "for anything but development, use `engine: docker`")
            return
        if config.sandbox.engine_url is not None:
            subject.engine_url, subject.named_in = config.sandbox.engine_url, f"sandbox.engine_url of {path}"
    async for finding in _on_engine(subject, slow):
        yield finding


async def _configured(path: Path, subject: _Subject) -> AsyncIterator[Finding]:
    """Look at a configuration, its policies and its database."""
    finding, subject.config, subject.tenants = _configuration(path)
    yield finding
    if subject.config is None:
        return
    database = database_finding(subject.config)
    yield database
    if database.state == "ok":
        subject.migrated = is_migrated(subject.config)
        drifted, subject.tenants = await _in_force(subject.config, subject.tenants)
        for finding in drifted:
            yield finding


async def _on_engine(subject: _Subject, slow: SlowWork) -> AsyncIterator[Finding]:
    """Look at an engine, and at what the configuration needs of it."""
    from gateway.errors import AirlockError
    from gateway.support.clock import make_id
    from sandbox.engines.docker.docker_engine import DockerEngine
    from sandbox.errors import SandboxError

    with tempfile.TemporaryDirectory(prefix="airlock-doctor-") as directory:
        engine = DockerEngine(
            instance=make_id("doctor"),
            channel_root=_channel_root(subject.config) or Path(directory),
            runtime_image=_RUNTIME,
            base_url=subject.engine_url,
            named_in=subject.named_in,
        )
        slow.at("the Docker engine")
        try:
            facts = await engine.describe()
        except SandboxError as error:
            yield Finding("engine", "failed", "does not answer", str(error))
            return
        try:
            if subject.config is not None:
                async for finding in _needed(subject, subject.config, engine, facts):
                    yield finding
            runtimes = {tenant.sandbox_spec("doctor").runtime for tenant in subject.tenants.values()}
            async for finding in _engine(engine, facts, runtimes, slow):
                yield finding
        except SandboxError as error:
            yield Finding("engine", "failed", "answers no more", str(error))
        except AirlockError as error:
            yield Finding("database", "failed", "answers no more", str(error))
        finally:
            await engine.close()


async def _needed(
    subject: _Subject, config: Config, engine: DockerEngine, facts: EngineFacts
) -> AsyncIterator[Finding]:
    """Look at what a configuration needs of its engine."""
    from sandbox.engines.docker.docker_requests import DockerRequests

    requests = DockerRequests(subject.engine_url, subject.named_in)
    try:
        if subject.migrated:
            async for finding in directory_findings(config, await engine.id(), requests):
                yield finding
        if subject.tenants:
            async for finding in tenant_findings(config, subject.tenants, facts, requests):
                yield finding
    finally:
        requests.close()


def _channel_root(config: Config | None) -> Path | None:
    """Return where a configuration's sandboxes have their sockets: an engine proxy lets them be nowhere else.

    None where that is not there yet: what the caller makes might not be the gateway's to use.
    """
    root = config.resolved_channel_dir() if config is not None else None
    return root if root is not None and os.access(root, os.W_OK | os.X_OK) else None


_RUNTIME = "airlock-runtime"
_IMAGES = {"airlock-sandbox": "what tool code sees", _RUNTIME: "the daemon that is brought along"}


async def _engine(
    engine: DockerEngine, facts: EngineFacts, asked: Collection[str], slow: SlowWork
) -> AsyncIterator[Finding]:
    """Look at an engine; `asked` are the runtimes that some policy asks for."""
    yield Finding("engine", "ok", f"Docker {facts.version}, API {facts.api_version}, {facts.storage_driver}")
    yield _seccomp(facts)
    yield _landlock()
    for image, role in _IMAGES.items():
        here = image in facts.images
        detail = role if here else f"{role}: not there"
        yield Finding(f"image {image}", "ok" if here else "failed", detail, "" if here else "run `make setup`")
    for runtime in ("runc", "runsc"):
        yield _runtime(runtime, facts)
    if set(_IMAGES) <= set(facts.images):
        slow.at("a trial sandbox")
        for runtime in {"runc": None, **dict.fromkeys(sorted(asked))}:
            if runtime in facts.runtimes:
                async for finding in _trial(engine, runtime):
                    yield finding


async def _trial(engine: DockerEngine, runtime: str) -> AsyncIterator[Finding]:
    """Start a sandbox; the engine refuses one whose posture is weaker than asked, so that coming up is the proof."""
    from sandbox.errors import SandboxError
    from sandbox.sandbox import SandboxSpec

    what = "sandbox" if runtime == "runc" else f"sandbox {runtime}"
    try:
        spec = SandboxSpec(tenant="doctor", thread=f"doctor-{runtime}", image="airlock-sandbox", runtime=runtime)
        sandbox = await engine.create(spec)
    except SandboxError as error:
        yield Finding(what, "failed", "a trial sandbox did not come up", str(error))
        return
    try:
        ran = await sandbox.shell.execute(
            "id -u", timeout_s=10, call_id="doctor", limit_chars=1000, head_chars=100, tail_chars=100
        )
        said = b"".join(piece.data for piece in ran.output).decode("utf-8", "replace").strip()
        if ran.exit_code == 0 and said.isdigit() and said != "0":
            yield Finding(what, "ok", f"a trial sandbox ran a command as user {said}")
        else:
            yield Finding(what, "failed", f"a trial command ended with {ran.outcome}: {said}", ran.message)
        posture = sandbox.posture
        if runtime != "runc":
            yield await _limits_outside(engine, sandbox)
            return
        for what, detail in (
            ("limit memory", f"{posture.memory_limit_bytes // 1024**2} MiB, read back from the kernel"),
            ("limit processes", f"{posture.pids_limit}, read back from the kernel"),
            ("limit cpu", f"{posture.cpu_limit_millis / 1000:g} CPUs, read back from the kernel"),
            ("isolation", "no network, no capabilities, no-new-privileges, seccomp, read-only root"),
        ):
            yield Finding(what, "ok", detail)
        yield _workspace(engine)
    finally:
        await engine.remove(sandbox.id)
        await engine.remove_workspace(spec.tenant, spec.thread)


async def _limits_outside(engine: DockerEngine, sandbox: Sandbox) -> Finding:
    """Look at the limits of a sandbox whose kernel does not tell of them, as the engine's host has them."""
    spec = sandbox.spec
    what, asked = f"limits {spec.runtime}", spec.limits.memory_bytes
    live = next((one for one in await engine.listed(spec.tenant) if one.id == sandbox.id), None)
    used = None if live is None else await engine.usage(live)
    if used is not None and used.memory_limit_bytes is not None and used.memory_limit_bytes <= asked:
        return Finding(what, "ok", f"{used.memory_limit_bytes // 1024**2} MiB of memory, by the host's control groups")
    mend = f"register {spec.runtime} without --ignore-cgroups, as docs/deployment.md says: no limit holds until then"
    return Finding(what, "warning", "the host's control groups hold none", mend)


def _workspace(engine: DockerEngine) -> Finding:
    by_engine = engine.bounds_workspaces
    by_daemon = "enforced by the sandbox's daemon, which comes up to some hundred MiB late (docs/limits.md)"
    mend = "put the engine's data directory on XFS mounted with pquota for a bound to the byte"
    detail = "enforced by the engine's disk" if by_engine else by_daemon
    return Finding.of("limit workspace", by_engine, detail, mend, "warning")


def _not_known(what: str, mend: str = "") -> Finding:
    return Finding(what, "warning", "not known: the configuration does not load", mend)


def _configuration(path: Path) -> tuple[Finding, Config | None, Mapping[str, Tenant]]:
    """Load what `airlock serve` would load; return the configuration too, also where only a policy does not load."""
    from gateway.config.config import Config
    from gateway.errors import Misconfigured
    from gateway.tenancy.tenants import load_tenants

    config = None
    try:
        config = Config.load(path)
        tenants = load_tenants(config)
    except Misconfigured as error:
        return Finding("configuration", "failed", "does not load", str(error)), config, {}
    versions = ", ".join(f"{tenant.name} {tenant.policy.version}" for tenant in tenants.values())
    return Finding("configuration", "ok", f"loads; policies: {versions}"), config, tenants


async def _in_force(config: Config, tenants: Mapping[str, Tenant]) -> tuple[list[Finding], Mapping[str, Tenant]]:
    """Return the tenants with the policies in force, and a finding for each file that is another one."""
    from gateway.cli.doctor_policies import drift_findings, in_force
    from gateway.errors import AirlockError

    try:
        return await drift_findings(config), await in_force(config, tenants)
    except (AirlockError, OSError) as error:
        return [Finding("policies in force", "failed", "not known; what follows is of the files", str(error))], tenants


def _python() -> Finding:
    ok = sys.version_info >= _PYTHON_WANTED
    return Finding.of("python", ok, platform.python_version(), "install Python 3.11", "failed")


def _disk() -> Finding:
    free = shutil.disk_usage("/").free
    detail, mend = f"{free / 1024**3:.1f} GiB free on /", "free some: images and workspaces need it"
    return Finding.of("disk", free >= _DISK_WANTED_BYTES, detail, mend, "warning")


def _open_files() -> Finding:
    """Look at the hard limit: that is what `airlock serve` raises its own to."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ok = hard == resource.RLIM_INFINITY or hard >= _OPEN_FILES_WANTED
    mend = (
        f"raise it to {_OPEN_FILES_WANTED:,} or more (`ulimit -Hn`, LimitNOFILE): runs and sandboxes need many at once"
    )
    detail = "without limit" if hard == resource.RLIM_INFINITY else f"{hard:,} at most"
    return Finding.of("open files", ok, detail, mend, "warning")


def _seccomp(facts: EngineFacts) -> Finding:
    detail = "the engine filters system calls" if facts.seccomp else "the engine has none"
    return Finding.of(
        "seccomp", facts.seccomp, detail, "use an engine built with seccomp, on a kernel with it", "failed"
    )


def _landlock() -> Finding:
    from sandbox.engines.docker.host_kernel import has_landlock

    ok = has_landlock()
    with_it = "the kernel keeps tool code from having its sandbox killed for memory"
    detail = with_it if ok else "this kernel has none: tool code can have its own sandbox killed for memory"
    return Finding.of("landlock", ok, detail, "use Linux 5.19 or newer", "warning")


def _runtime(name: str, facts: EngineFacts) -> Finding:
    ok = name in facts.runtimes
    detail = "known to the engine" if ok else "not known to the engine"
    if name == "runc":
        return Finding.of("runtime runc", ok, detail, "install runc", "failed")
    mend = "install gVisor and register it: docs/deployment.md"
    return Finding.of(f"runtime {name}", ok, detail, mend, "warning")
