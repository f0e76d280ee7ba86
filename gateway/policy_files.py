"""The policy files that the configuration names: an edited one comes into force by itself, a bad one never does.

A file is the source of its tenant's policy only at the moment that it is edited. The latest act wins: an edited file,
`airlock policy apply` or `airlock policy rollback`; a file that nobody has touched since takes nothing back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.background import in_background
from gateway.config import Config
from gateway.errors import Misconfigured, Unavailable
from gateway.policies import Policies
from gateway.policy import PolicyError
from gateway.policy_check import PolicyChecker, read_policy_file
from gateway.storage.policy_store import OPERATOR, Change, digest_of_text
from gateway.tenant_agents import agents_of_all

log = structlog.get_logger(__name__)
_POLL_S = 0.25
# Thousands of files are looked at less often, or looking would be all that a processor does.
_STATS_PER_S = 5000
_BY_CHARS = 256
_REFUSED = "a policy file is refused; the last good policy holds"
_REFUSED_AND_NONE_HOLDS = "a policy file is refused, and no earlier policy is there to hold"
_Stamp = tuple[int, int, int] | None


@dataclass
class _File:
    """A file as it was seen last: `digest` of what was taken of it, `settled` when it has not changed since a look."""

    path: Path
    tenants: list[str]
    stamp: _Stamp = None
    settled: bool = False
    digest: str = ""
    refused: bool = False


@dataclass(frozen=True)
class _Read:
    file: _File
    text: str
    problem: str = ""


class PolicyFiles:
    """Watches the files of one configuration."""

    def __init__(self, config: Config, policies: Policies) -> None:
        self._config = config
        self._policies = policies
        self._agents = agents_of_all(config)
        self._files = _files(config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy-files")

    async def open(self) -> None:
        """Take what the files say that is new since a gateway last looked, this one or another.

        Misconfigured where a tenant has no good policy at all, neither in its file nor from before.
        """
        loop = asyncio.get_running_loop()
        problems: list[str] = []
        checker = PolicyChecker(self._config, self._agents)
        for read in await loop.run_in_executor(self._thread, self._read_all):
            refused = await self._take(read, checker)
            # The operator's layer is another thing than none: without a good one nothing starts.
            problems += [refused[tenant] for tenant in refused if self._policies.change_in_force(tenant) is None]
        if problems:
            raise Misconfigured("\n".join(dict.fromkeys(problems)))

    def close(self) -> None:
        """Stop looking."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Take each edit of a file within a second, until the block ends."""
        async with in_background(self._watch(), "policy files"):
            yield

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(_POLL_S, len(self._files) / _STATS_PER_S))
            try:
                edited = await loop.run_in_executor(self._thread, self._read_edited)
                checker = PolicyChecker(self._config, self._agents)
                for read in edited:
                    await self._take(read, checker)
            except Unavailable as error:
                log.warning("an edited policy waits for the database", error=str(error))
            except Exception:  # the next look may go well, and must come
                log.exception("fault while looking at the policy files")

    async def _take(self, read: _Read, checker: PolicyChecker) -> dict[str, str]:
        """Put what was read in force where it is new and good; return what was refused, by tenant."""
        refused: dict[str, Misconfigured] = {}
        mended, read.file.refused = read.file.refused, False
        taken: list[tuple[str, str]] = []
        for tenant in read.file.tenants:
            known = self._policies.change_from_file(tenant)
            if not read.problem and known is not None and known.digest == read.file.digest:
                if mended:
                    await self._tell_mended(tenant, read.file)
                continue
            try:
                if read.problem:
                    raise Misconfigured(read.problem)
                await checker.check(tenant, read.text, str(read.file.path), self._policies, self._thread)
            except Misconfigured as error:
                refused[tenant] = error
            else:
                taken.append((tenant, read.text))
        read.file.refused = bool(refused)
        for tenant, why in refused.items():
            facts = {"tenant": tenant, "path": str(read.file.path), "problems": _problems(why)}
            holds = self._policies.change_in_force(tenant) is not None
            log.error(_REFUSED if holds else _REFUSED_AND_NONE_HOLDS, **facts)
        try:
            by = f"file {read.file.path}"
            apply = self._policies.store.apply
            changes: list[Change] = await asyncio.gather(
                *(apply(tenant, text, "file", by[:_BY_CHARS]) for tenant, text in taken)
            )
        except Unavailable:
            read.file.stamp, read.file.digest = None, ""  # it is looked at again
            raise
        await self._policies.take(changes)
        return {tenant: str(why) for tenant, why in refused.items()}

    async def _tell_mended(self, tenant: str, file: _File) -> None:
        """Say what a file that was refused has come to: it was taken before, and takes nothing back."""
        change = self._policies.change_in_force(tenant)
        version = await self._policies.named(change) if change is not None else ""
        said = "a policy file loads again, unchanged; the version in force stays"
        log.info(said, tenant=tenant, path=str(file.path), version=version)

    # --- what the thread does ---

    def _read_all(self) -> list[_Read]:
        for file in self._files:
            file.stamp, file.settled = _stamp(file.path), True
        return [read for file in self._files if (read := _read(file)) is not None]

    def _read_edited(self) -> list[_Read]:
        """Read what has changed and then kept still for a look: a half-written policy could lack its last rules."""
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
    """Return the files, the operator's layer first: tenants' are looked at together with it."""
    files: dict[Path, _File] = {}
    named = {OPERATOR: config.operator_policy} if config.operator_policy is not None else {}
    for tenant, relative in (named | {name: settings.policy for name, settings in config.tenants.items()}).items():
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
    """Return what a file says; None when that is what was taken of it before."""
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
