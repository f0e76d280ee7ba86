"""The versions of a layer of policy, stored on a gateway or in the database of a configuration."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from gateway.agents.tenant_agents import agents_of_all
from gateway.cli.command import check_tenant, taken
from gateway.cli.key_backend import local_database
from gateway.client import Client
from gateway.client.admin import PolicyChange
from gateway.config.config import Config
from gateway.errors import Misconfigured, NotFound, PolicyInvalid
from gateway.policy import Policy, PolicyError, PolicyProblem, load_policy
from gateway.policy_versions.policies import Policies, stored_document, version_of
from gateway.policy_versions.policy_change import PolicyChangeRequest, is_named, put_in_force
from gateway.policy_versions.policy_check import PolicyChecker, read_policy_file
from gateway.storage.database import Database
from gateway.storage.policy_store import OPERATOR, Change, Kind, PolicyStore, digest_of_text

_HISTORY = 1000
Versions = Sequence[tuple[Change, str]]
"""Changes, newest first, each with its version, "" if it no longer loads."""


@dataclass(frozen=True)
class PolicyEdit:
    """A change to a layer: a text, or an earlier version. On a gateway, the key is the author."""

    text: str = ""
    source: str = ""
    version: str = ""
    by: str = ""
    comment: str = ""
    expected_version: str | None = None


class PolicyRefused(Exception):
    """A policy does not load or does not fit the configuration; nothing was changed."""

    def __init__(self, message: str, problems: Sequence[PolicyProblem] = ()) -> None:
        super().__init__(message)
        self.problems = [{"line": one.line, "field": one.field, "message": one.message} for one in problems]


class PolicyBackend(ABC):
    """The versions of one layer, which is a tenant's name or "" for the operator's. Raises NotFound for others."""

    def __init__(self, layer: str) -> None:
        self.layer = layer

    @abstractmethod
    async def put(self, edit: PolicyEdit) -> None:
        """Put a version in force. Raises PolicyRefused, and PolicyChanged if the expected version is not in force."""

    @abstractmethod
    async def changes(self, layer: str, limit: int) -> Versions:
        """Return the changes of a layer."""

    @abstractmethod
    async def text(self, change: Change) -> str:
        """Return the text of the change that is in force in its layer."""

    def watched_file(self, change: Change) -> dict[str, str] | None:
        """Return the path and state of the layer's policy file; None if there is none or it is unknown."""
        del change
        return None

    async def history(self, limit: int) -> list[dict[str, Any]]:
        """Return the changes as documents, newest first."""
        return [_as_document(change, version) for change, version in await self.changes(self.layer, limit)]

    async def apply(self, edit: PolicyEdit) -> dict[str, Any]:
        """Apply an edit if it loads and fits the configuration; return a document with the result.

        `refused` and `errors` say why it was not applied. `watched_file_differs` names the layer's policy file if that
        differs from the version now in force.
        """
        before = await self.changes(self.layer, 1)
        try:
            await self.put(edit)
        except PolicyRefused as error:
            problems = error.problems or [{"line": 0, "field": "", "message": str(error)}]
            return {"ok": False, "errors": problems, "refused": str(error)}
        (change, version), *_ = await self.changes(self.layer, 1)
        unchanged = bool(before) and before[0][0] == change
        replaced = before[0][1] or before[0][0].digest if before and not unchanged else ""
        applied = {"ok": True, "errors": [], **_as_document(change, version)}
        applied |= {"before": replaced, "unchanged": unchanged}
        file = self.watched_file(change)
        differs = file is not None and file["state"] != "in force"
        return applied | ({"watched_file_differs": file["path"]} if file is not None and differs else {})

    async def rollback(self, edit: PolicyEdit) -> dict[str, Any]:
        """Put an earlier version in force again; by default, undo the last change that is not undone."""
        if not edit.version:
            newest_first = [change for change, _ in await self.changes(self.layer, _HISTORY)]
            edit = replace(edit, version=_change_before(newest_first).digest)
        return await self.apply(edit)

    async def describe(self, *, with_text: bool) -> dict[str, Any]:
        """Return what is in force, as a document."""
        found = list(await self.changes(self.layer, 1))
        if not found:
            raise NotFound("no policy is in force here: run `airlock policy apply`")
        if self.layer != OPERATOR:
            found += await self.changes(OPERATOR, 1)
        texts = [await self.text(change) for change, _ in found]
        try:
            in_force = Policy(*map(stored_document, texts)).version
        except ValueError:  # of another release
            in_force = ""
        own, operator = _as_document(*found[0]), _as_document(*found[1]) if len(found) > 1 else None
        reported = own | {"operator": operator, "in_force": in_force, "file": self.watched_file(found[0][0])}
        return reported | {"text": texts[0]} if with_text else reported


class RemotePolicies(PolicyBackend):
    """The versions of a layer on a gateway; the client's key is an operator's."""

    def __init__(self, airlock: Client, layer: str) -> None:
        super().__init__(layer)
        self._airlock = airlock

    async def put(self, edit: PolicyEdit) -> None:
        chosen = {"version": edit.version, "comment": edit.comment, "expected_version": edit.expected_version}
        try:
            await self._airlock.apply_policy(self.layer, edit.text, **cast(Any, chosen))
        except PolicyInvalid as error:
            problems = json.loads(error.details.get("problems", "[]"))
            raise PolicyRefused(str(error), [PolicyProblem(**problem) for problem in problems]) from error

    async def changes(self, layer: str, limit: int) -> Versions:
        newest_first = await taken(self._airlock.policy_changes(layer), limit)
        return [(_stored(one), one.version) for one in newest_first]

    async def text(self, change: Change) -> str:
        return (await self._airlock.policy(change.tenant)).text


def _stored(one: PolicyChange) -> Change:
    """Return a change in the form of the database; its digest is its version."""
    at_us = round(one.at.timestamp() * 1_000_000)
    return Change(0, one.tenant, one.version, cast(Kind, one.kind), one.by, one.comment, at_us)


class LocalPolicies(PolicyBackend):
    """The versions of a layer in the database of a configuration, for which no operator key is needed."""

    def __init__(self, config: Config, policies: Policies, layer: str) -> None:
        super().__init__(layer)
        self._policies = policies
        self._config = config

    async def put(self, edit: PolicyEdit) -> None:
        asked, source = await self._asked(edit)
        try:
            checker = PolicyChecker(self._config, agents_of_all(self._config))
            await checker.check(self.layer, asked.text, source, self._policies)
        except Misconfigured as error:
            cause = error.__cause__
            raise PolicyRefused(str(error), cause.errors if isinstance(cause, PolicyError) else ()) from error
        current = self._policies.change_in_force(self.layer)
        if current is None or current.digest != digest_of_text(asked.text):
            await put_in_force(self._policies, asked)

    async def changes(self, layer: str, limit: int) -> Versions:
        return [(change, await self._version(change)) for change in await self._policies.store.history(layer, limit)]

    async def text(self, change: Change) -> str:
        return await self._policies.store.text(change.digest)

    def watched_file(self, change: Change) -> dict[str, str] | None:
        config, layer = self._config, change.tenant
        named = config.operator_policy if layer == OPERATOR else config.tenants[layer].policy_file
        if named is None:
            return None
        path = config.path(named)
        try:
            text = read_policy_file(path, "the file")
            state = "in force" if digest_of_text(text) == change.digest else "not what is in force"
            load_policy(text, str(path))
        except Misconfigured:
            state = "cannot be read"
        except PolicyError:
            state = "does not load, and is not in force"
        return {"path": str(path), "state": state}

    async def _asked(self, edit: PolicyEdit) -> tuple[PolicyChangeRequest, str]:
        """Return the requested change, and the name of its text in messages."""
        layer = self.layer
        if not edit.version:
            asked = PolicyChangeRequest(layer, edit.text, "apply", edit.by, edit.comment, edit.expected_version)
            return asked, edit.source
        for change in await self._policies.store.history(layer, _HISTORY):
            if await is_named(self._policies, change, edit.version):
                text = await self.text(change)
                return PolicyChangeRequest(layer, text, "rollback", edit.by, edit.comment), f"change {change.id}"
        raise NotFound(f"version {edit.version!r} not found: `airlock policy history` lists the versions")

    async def _version(self, change: Change) -> str:
        try:
            return version_of(stored_document(await self.text(change)))
        except ValueError:
            return ""


@contextlib.asynccontextmanager
async def local_policies(config: Config, layer: str) -> AsyncIterator[LocalPolicies]:
    """Open the policies of a configuration. Raises Misconfigured for the layer of an unknown tenant."""
    if layer != OPERATOR:
        check_tenant(config, layer)
    async with local_database(config, create=True) as database, opened_policies(database) as policies:
        yield LocalPolicies(config, policies, layer)


@contextlib.asynccontextmanager
async def opened_policies(database: Database) -> AsyncIterator[Policies]:
    """Open the policies of a database."""
    policies = Policies(PolicyStore(database))
    try:
        await policies.open()
        yield policies
    finally:
        policies.close()


def _as_document(change: Change, version: str) -> dict[str, Any]:
    return {
        "tenant": change.tenant or None,
        "version": version,
        # A gateway does not report digests.
        **({} if change.digest == version else {"digest": change.digest}),
        "kind": change.kind,
        "by": change.by,
        "comment": change.comment,
        "at": datetime.fromtimestamp(change.at_us / 1_000_000, UTC).isoformat(timespec="seconds"),
    }


def _change_before(newest_first: Sequence[Change]) -> Change:
    """Return the change before the last one that no rollback has undone. Raises NotFound."""
    remaining: list[Change] = []
    for change in reversed(newest_first):
        if change.kind == "rollback":
            before = [n for n, earlier in enumerate(remaining[:-1]) if earlier.digest == change.digest]
            if before:
                del remaining[before[-1] + 1 :]
                continue
        if not remaining or remaining[-1].digest != change.digest:
            remaining.append(change)
    if len(remaining) < 2:
        raise NotFound("there is no earlier version to roll back to: `airlock policy history` lists the versions")
    return remaining[-2]
