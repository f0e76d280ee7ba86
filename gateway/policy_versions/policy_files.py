"""Watches the policy files of the configuration: an edited file comes into force by itself, an invalid one never does.

A file counts only if its content changed after the policy in force was applied, by `airlock policy apply`, `rollback`
or another file. At a start, that is a text that was never in force before; while a gateway runs, an edit whose text was
not in force since the file was last read. Any other text that differs from the policy in force is drift: it is logged,
counted and reported by `airlock doctor`, and changes nothing.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.agents.agents import agents_of_all
from gateway.config.config import Config
from gateway.errors import Misconfigured, Unavailable
from gateway.policy import PolicyError
from gateway.policy_versions.policies import Policies
from gateway.policy_versions.policy_check import PolicyChecker, read_policy_file
from gateway.storage.policy_store import OPERATOR, Change, digest_of_text
from gateway.support.background import in_background

log = structlog.get_logger(__name__)
_POLL_S = 0.25
# Bounds the CPU time for watching thousands of files.
_STATS_PER_S = 5000
_BY_CHARS = 256
_REFUSED = "a policy file is refused; the last valid policy stays in force"
_REFUSED_WITHOUT_POLICY = "a policy file is refused, and there is no earlier policy"
_DRIFT = "a policy file differs from what is in force, and changes nothing until it is edited or applied"
_DISPLACED = "an edited policy file replaces a version that was applied; `airlock policy rollback` restores it"
_Stamp = tuple[int, int, int] | None


@dataclass
class _File:
    """The last seen state of a file: `digest` of its text, `settled` once it did not change between two looks.

    `considered` is the digest of the last text that loaded or was drift; `after` is the last change of any policy that
    was known when that text was read, 0 before.
    """

    path: Path
    tenants: list[str]
    stamp: _Stamp = None
    settled: bool = False
    digest: str = ""
    refused: bool = False
    considered: str = ""
    after: int = 0


@dataclass(frozen=True)
class _Read:
    file: _File
    text: str
    problem: str = ""


class PolicyFiles:
    """Watches the files of one configuration."""

    drifted: Mapping[str, Path]
    """The files that differ from what is in force, by tenant; "" is the operator's layer."""

    def __init__(self, config: Config, policies: Policies) -> None:
        self.drifted = {}
        self._drift: dict[str, tuple[str, int]] = {}
        self._config = config
        self._policies = policies
        self._agents = agents_of_all(config)
        self._files = _files(config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy-files")

    async def open(self) -> None:
        """Apply files that changed since a gateway last looked, this one or another.

        Raises Misconfigured if a tenant has no good policy, neither in its file nor from before.
        """
        loop = asyncio.get_running_loop()
        problems: list[str] = []
        checker = PolicyChecker(self._config, self._agents)
        for read in await loop.run_in_executor(self._thread, self._read_all):
            refused = await self._take(read, checker)
            # Without the operator's layer the policies would allow more, so without a good one nothing starts.
            problems += [refused[tenant] for tenant in refused if self._policies.change_in_force(tenant) is None]
        if problems:
            raise Misconfigured("\n".join(dict.fromkeys(problems)))
        await self._look_for_drift()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Apply each edit of a file within a second, until the block ends."""
        return in_background(self._watch(), "policy files")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(_POLL_S, len(self._files) / _STATS_PER_S))
            try:
                edited = await loop.run_in_executor(self._thread, self._read_edited)
                checker = PolicyChecker(self._config, self._agents)
                for read in edited:
                    await self._take(read, checker)
                await self._look_for_drift()
            except Unavailable as error:
                log.warning("an edited policy file waits for the database", error=str(error))
            except Exception:  # the next round may succeed
                log.exception("watching the policy files failed")

    async def _take(self, read: _Read, checker: PolicyChecker) -> dict[str, str]:
        """Put a text in force if it is new and good; return the errors of refused ones by tenant."""
        refused: dict[str, Misconfigured] = {}
        file, newest = read.file, self._policies.newest
        was_refused, file.refused = file.refused, False
        taken: list[tuple[str, str]] = []
        try:
            for tenant in file.tenants:
                if not read.problem and not await self._counts(tenant, file):
                    if was_refused:
                        await self._log_recovered(tenant, file)
                    continue
                try:
                    if read.problem:
                        raise Misconfigured(read.problem)
                    await checker.check(tenant, read.text, str(file.path), self._policies, self._thread)
                except Misconfigured as error:
                    refused[tenant] = error
                else:
                    taken.append((tenant, read.text))
            file.refused = bool(refused)
            for tenant, refusal in refused.items():
                facts = {"tenant": tenant, "path": str(file.path), "problems": _problems(refusal)}
                has_policy = self._policies.change_in_force(tenant) is not None
                log.error(_REFUSED if has_policy else _REFUSED_WITHOUT_POLICY, **facts)
            for tenant, _ in taken:
                await self._log_displaced(tenant, file)
            by, apply = f"file {file.path}"[:_BY_CHARS], self._policies.store.apply
            changes: list[Change] = await asyncio.gather(
                *(apply(tenant, text, "file", by, after=file.after) for tenant, text in taken)
            )
        except Unavailable:
            file.stamp, file.digest = None, ""  # read again in the next round
            raise
        if not refused:
            file.considered, file.after = file.digest, newest
        await self._policies.take(changes)
        return {tenant: str(refusal) for tenant, refusal in refused.items()}

    async def _counts(self, tenant: str, file: _File) -> bool:
        """Return whether a file's text changed after the policy in force was applied."""
        current = self._policies.change_in_force(tenant)
        if current is None:
            return True  # unless another gateway is faster
        if file.digest in (file.considered, current.digest):
            return False
        return await self._policies.store.new(tenant, file.digest, file.after)

    async def _look_for_drift(self) -> None:
        """Find the files that differ from what is in force, and log each new one."""
        drifted: dict[str, Path] = {}
        drift: dict[str, tuple[str, int]] = {}
        for file in self._files:
            for tenant in file.tenants if file.considered else ():
                current = self._policies.change_in_force(tenant)
                if current is None or current.digest == file.considered:
                    continue
                drifted[tenant], drift[tenant] = file.path, (file.considered, current.id)
                if self._drift.get(tenant) != drift[tenant]:
                    facts = {"tenant": tenant, "path": str(file.path), "version": await self._policies.named(current)}
                    log.warning(_DRIFT, **facts, kind=current.kind, by=current.by)
        self.drifted, self._drift = drifted, drift

    async def _log_displaced(self, tenant: str, file: _File) -> None:
        """Log that an edited file replaces a version that a command or the API applied."""
        before = self._policies.change_in_force(tenant)
        if before is not None and before.kind != "file":
            version = await self._policies.named(before)
            log.warning(_DISPLACED, tenant=tenant, path=str(file.path), version=version, applied_by=before.by)

    async def _log_recovered(self, tenant: str, file: _File) -> None:
        """Log that a refused file loads again with a text that is no change."""
        change = self._policies.change_in_force(tenant)
        version = await self._policies.named(change) if change is not None else ""
        message = "a policy file loads again, unchanged; the version in force stays"
        log.info(message, tenant=tenant, path=str(file.path), version=version)

    # --- in the thread ---

    def _read_all(self) -> list[_Read]:
        for file in self._files:
            file.stamp, file.settled = _stamp(file.path), True
        return [read for file in self._files if (read := _read(file)) is not None]

    def _read_edited(self) -> list[_Read]:
        """Read files that changed and then stayed the same for a round: a half-written policy could lack rules."""
        found: list[_Read] = []
        for file in self._files:
            stamp = _stamp(file.path)
            if stamp != file.stamp:
                file.stamp, file.settled = stamp, False
            elif not file.settled:
                file.settled = True
                read = _read(file)
                if read is not None:
                    found.append(read)
        return found


def _files(config: Config) -> list[_File]:
    """Return the files, the operator's layer first: tenants' files are checked together with it."""
    files: dict[Path, _File] = {}
    named = {OPERATOR: config.operator_policy} if config.operator_policy is not None else {}
    own = {name: settings.policy_file for name, settings in config.tenants.items() if settings.policy_file is not None}
    for tenant, relative in (named | own).items():
        path = config.path(relative)
        files.setdefault(path, _File(path, [])).tenants.append(tenant)
    return list(files.values())


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _read(file: _File) -> _Read | None:
    """Read a file; None if its content is unchanged since the last time."""
    try:
        text = read_policy_file(file.path, _field(file.tenants[0]))
    except Misconfigured as error:
        digest = digest_of_text(str(error))
        read = _Read(file, "", str(error))
    else:
        digest = digest_of_text(text)
        read = _Read(file, text)
    if digest == file.digest:
        return None
    file.digest = digest
    return read


def _field(tenant: str) -> str:
    return f"tenants.{tenant}.policy" if tenant != OPERATOR else "operator_policy"


def _problems(error: Misconfigured) -> list[str]:
    cause = error.__cause__
    if isinstance(cause, PolicyError):
        return [f"line {problem.line}: {problem.text}" for problem in cause.errors]
    return [str(error)]
