"""The checks of a configuration by `airlock doctor`: its database, directories, policies and tenants.

They change nothing, but `kernel_findings` creates trial sandboxes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace

from gateway.cli.database import local_database, opened_policies
from gateway.cli.doctor_snapshots import bucket_owner_findings, snapshots_finding
from gateway.cli.finding import Finding
from gateway.cli.model import checked, configured
from gateway.cli.policy_checks import SUBAGENTS_FIX, subagents_problem
from gateway.config.config import Config
from gateway.config.model_settings import OneModelSettings
from gateway.errors import Misconfigured
from gateway.sandboxes.channel_claim import channel_use, check_channels
from gateway.serving.directory_locks import INSTANCE, refuse_copy
from gateway.storage.connecting import file_of
from gateway.storage.database import identity_of, value_of
from gateway.storage.engine_store import ChannelStore
from gateway.storage.migration import Revision, revision_of, shortened
from gateway.storage.policy_store import OPERATOR, digest_of_text
from gateway.tenancy.tenants import Tenant, Tenants
from gateway.tool_calls.program_check import missing_programs
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests, inspect_image
from sandbox.engines.docker.engine_facts import EngineFacts
from sandbox.engines.docker.image_pulls import pullable
from sandbox.engines.docker.workspace_transfer import EngineDisk
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.errors import ImageMissing, SandboxError, SandboxUnavailable
from sandbox.file_rules import FILE_RULES_LANDLOCK_VERSION
from sandbox.sandbox import SandboxSpec

_RUNTIME_FIX = "register it with the engine (docs/deployment.md), or write `runtime: runc` in its policy"


def database_finding(config: Config) -> Finding:
    """Check the database of a configuration."""
    what = "database"
    try:
        url = config.resolved_database_url()
        revision = _revision(url)
        if revision is None:
            return Finding(what, "ok", "SQLite: the first start creates it")
    except (Misconfigured, ValueError) as error:
        return Finding(what, "failed", "does not open", f"{error}. See docs/storage.md")
    kind = "SQLite" if file_of(url) else "PostgreSQL"
    if revision.current is None:
        return Finding(what, "ok", f"{kind}, empty: the first start creates the tables")
    detail = f"{kind}, revision {revision.current}"
    if missing := revision.missing:
        return Finding(what, "failed", f"{detail}, lacks {shortened(missing)}", "restore a backup (docs/storage.md)")
    if revision.current == revision.newest:
        return Finding(what, "ok", f"{detail}, the newest")
    if revision.unreleased:
        fix = "an unreleased airlock created it, before the first release: start with a new database"
        return Finding(what, "failed", f"{detail}, older than the first release", fix)
    if not revision.known:
        fix = "a newer airlock upgraded it: run that release, or restore a backup from before the upgrade"
        return Finding(what, "failed", f"{detail}, newer than {revision.newest}", fix)
    fix = "make a backup before that start (docs/storage.md)"
    return Finding(what, "warning", f"{detail}: the next start upgrades it to {revision.newest}", fix)


async def model_findings(config: Config) -> list[Finding]:
    """Ask each model of a configuration for a few words, and whether it streams and calls tools."""
    try:
        models = list(configured(config))
    except Misconfigured as error:
        return [Finding("models", "warning", "runs of agents cannot start", str(error))]
    return [await _model_finding(model) for model in models]


async def _model_finding(model: OneModelSettings) -> Finding:
    report = await checked(model, short=True)
    what, fix = f"model {model.resolved_name()}", f"run `airlock model check {model.resolved_name()}`"
    if report.problem:
        return Finding(what, "warning", "it does not answer", report.problem)
    answers = {one.question: one.answer for one in report.findings}
    if report.settings.items() - model.model_dump(include=set(report.settings)).items():
        return Finding(what, "warning", "it needs other settings", fix)
    calls = "tools in a stream" if model.stream else "tools without a stream"
    return Finding.of(
        what, answers.get(calls, "yes") == "yes", f"answers; {calls}: {answers.get(calls)}", fix, "warning"
    )


def is_migrated(config: Config) -> bool:
    """Return whether the database exists and needs no upgrade. Raises Misconfigured."""
    revision = _revision(config.resolved_database_url())
    return revision is not None and revision.current == revision.newest


def _revision(url: str) -> Revision | None:
    """Return the revision of a database, None if its file does not exist."""
    file = file_of(url)
    return None if file is not None and not file.exists() else revision_of(url)


async def instance_of(config: Config) -> str | None:
    """Return the instance id of a database, None if no gateway has ever served it. The database must be migrated."""
    async with local_database(config, as_it_is=True) as database:
        return await value_of(database, INSTANCE)


async def directory_findings(config: Config, engine: str, requests: DockerRequests) -> list[Finding]:
    """Return what a start would refuse, and change nothing; `engine` is an id. The database must be migrated.

    Raises SandboxError, Misconfigured, Unavailable.
    """
    channels = config.resolved_channel_dir()
    async with local_database(config, as_it_is=True) as database:
        instance = await value_of(database, INSTANCE)
        if instance is None:
            return []  # no gateway has ever served this database
        identity = await identity_of(database)
        found = [Finding("channel directory", "ok", f"{channels}, used by engine {engine}")]
        try:
            use = await channel_use(requests, engine, instance, channels)
            check_channels(use, await ChannelStore(database).records())
        except Misconfigured as error:
            detail = f"this engine uses another directory than {channels}"
            found = [Finding("channel directory", "failed", detail, str(error))]
    directories = {"channels": channels}
    if config.snapshots.bucket is None:
        directories["snapshots"] = config.resolved_snapshots_dir()
    else:
        found += await bucket_owner_findings(config, instance, identity)
    for what, directory in directories.items():
        try:
            refuse_copy(directory, instance, identity)
        except Misconfigured as error:
            detail = f"another database uses {directory}"
            found.append(Finding(f"database of {what}", "failed", detail, str(error)))
        except OSError as error:
            detail = f"{directory}: {error.strerror}"
            found.append(Finding(f"database of {what}", "warning", detail, "make it readable"))
    return found


async def policies_in_force(
    config: Config, tenants: Mapping[str, Tenant], *, migrated: bool
) -> tuple[Mapping[str, Tenant], list[Finding]]:
    """Return the tenants with the policies that the database has in force, including tenants without a file.

    A tenant keeps its policy file if the next start will apply it. There is a warning for each file that the next start
    will not apply although it differs, and for each tenant that has neither a file nor a policy. In a database that is
    not `migrated` (is_migrated) no policy is in force. Changes nothing. Raises Misconfigured, Unavailable.
    """
    files = {OPERATOR: config.operator_policy} | {name: one.policy_file for name, one in config.tenants.items()}
    if not migrated:
        return tenants, [_never_applied(name) for name in config.tenants if files[name] is None]
    findings, coming = [], set()
    async with local_database(config, as_it_is=True) as database, opened_policies(database) as policies:
        for layer, file in files.items():
            change = policies.change_in_force(layer)
            if file is None:
                findings += [_never_applied(layer)] if change is None and layer != OPERATOR else []
                continue
            path = config.path(file)
            digest = digest_of_text(path.read_text(encoding="utf-8"))
            if change is None or (digest != change.digest and await policies.store.new(layer, digest)):
                coming.add(layer)
            elif digest != change.digest:
                in_force = f"{await policies.named(change)} is in force ({change.kind} by {change.by})"
                whose = f"--tenant {layer}" if layer else "--operator-layer"
                fix = f"edit the file or run `airlock policy apply {path} {whose}`, or write `policy: managed`"
                what = f"policy of {layer}" if layer else "operator policy"
                findings.append(Finding(what, "warning", f"{path} has no effect: {in_force}", fix))
        stored, found = Tenants(config, policies), dict(tenants)
        for name in config.tenants:
            stays = files[name] is None or not coming & {name, OPERATOR}
            if stays and policies.change_in_force(name) is not None:
                found[name] = await stored.named(name)
        return found, findings


def _never_applied(tenant: str) -> Finding:
    fix = f"run `airlock policy apply FILE --tenant {tenant}`; until then its calls are refused"
    detail = "managed by `airlock policy apply`, but never applied"
    return Finding(f"policy of {tenant}", "warning", detail, fix)


async def tenant_findings(
    config: Config, tenants: Mapping[str, Tenant], facts: EngineFacts, requests: DockerRequests
) -> AsyncIterator[Finding]:
    """Yield a finding for each tenant, the pool, the disk and the snapshots. Raises EngineUnavailable."""
    for name, tenant in tenants.items():
        yield await _tenant(f"tenant {name}", tenant.sandbox_spec("doctor"), config, facts, requests)
    yield _pool(config, {PoolKind.of(tenant.sandbox_spec("doctor")) for tenant in tenants.values()})
    if requests.relays is not None:
        yield Finding("reserve", "ok", "on another machine, where each sandbox watches it; restores are not checked")
    else:
        yield _reserve(await EngineDisk(requests).free_bytes(), config.sandbox.disk_reserve_mib)
    for finding in await common_findings(config, tenants):
        yield finding


async def common_findings(config: Config, tenants: Mapping[str, Tenant]) -> Sequence[Finding]:
    """Return the findings of what is the same with every engine: subagents of the tenants, and the snapshots."""
    subagents = [_subagents(name, config, tenant) for name, tenant in tenants.items()]
    return [*(found for found in subagents if found), await snapshots_finding(config)]


def _subagents(name: str, config: Config, tenant: Tenant) -> Finding | None:
    problem = subagents_problem(config, [name], tenant.policy.tenant_document, tenant.policy.operator_document)
    return Finding(f"subagents {name}", "warning", problem, SUBAGENTS_FIX) if problem else None


def _reserve(free_bytes: int, reserve_mib: int) -> Finding:
    detail = f"{free_bytes // 1024**2:,} MiB free on the engine's disk, {reserve_mib:,} MiB reserved"
    if free_bytes >= reserve_mib * 1024**2:
        return Finding("reserve", "ok", detail)
    fix = "free space, or lower sandbox.disk_reserve_mib; until then no file in a sandbox can grow"
    return Finding("reserve", "failed", detail, fix)


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
