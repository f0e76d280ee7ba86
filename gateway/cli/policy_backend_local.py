"""Versions of policies in the database: who can write that needs no operator's key."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from gateway.cli.key_backend import check_tenant, local_database
from gateway.cli.policy_backend import Applied, as_document, change_before

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.policy import PolicyDocument
    from gateway.policy_versions.policies import Policies
    from gateway.policy_versions.policy_change import PolicyChangeRequest
    from gateway.storage.policy_store import Change

_HISTORY = 1000


@contextlib.asynccontextmanager
async def local_policies(config: Config, layer: str) -> AsyncIterator[LocalPolicies]:
    """Open the policies of a configuration. Misconfigured for a tenant that it does not have."""
    from gateway.policy_versions.policies import Policies
    from gateway.storage.policy_store import OPERATOR, PolicyStore

    if layer != OPERATOR:
        check_tenant(config, layer)
    async with local_database(config) as database:
        policies = Policies(PolicyStore(database))
        try:
            await policies.open()
            yield LocalPolicies(config, policies, layer)
        finally:
            policies.close()


class LocalPolicies:
    """The versions of one layer."""

    def __init__(self, config: Config, policies: Policies, layer: str) -> None:
        self._policies = policies
        self._config = config
        self._layer = layer

    async def apply(
        self, text: str, source: str, *, by: str, comment: str, expected_version: str | None = None
    ) -> Applied:
        """Put a text in force."""
        from gateway.policy_versions.policy_change import PolicyChangeRequest

        return await self._put(PolicyChangeRequest(self._layer, text, "apply", by, comment, expected_version), source)

    async def rollback(self, version: str | None, *, by: str, comment: str) -> Applied:
        """Put an earlier version in force again."""
        from gateway.policy_versions.policy_change import PolicyChangeRequest

        change = await self._earlier(version)
        text = await self._policies.store.text(change.digest)
        asked = PolicyChangeRequest(self._layer, text, "rollback", by, comment)
        return await self._put(asked, f"change {change.id}")

    async def history(self, limit: int) -> Sequence[tuple[Change, str]]:
        """Return what was in force, the newest first."""
        changes = await self._policies.store.history(self._layer, limit)
        return [(change, await self._version(change)) for change in changes]

    async def _put(self, asked: PolicyChangeRequest, source: str) -> Applied:
        """Check a text and put it in force."""
        from gateway.agents.tenant_agents import agents_of_all
        from gateway.errors import Misconfigured
        from gateway.policy import PolicyError
        from gateway.policy_versions.policy_change import put_in_force
        from gateway.policy_versions.policy_check import PolicyChecker
        from gateway.storage.policy_store import digest_of_text

        try:
            checker = PolicyChecker(self._config, agents_of_all(self._config))
            await checker.check(self._layer, asked.text, source, self._policies)
        except Misconfigured as error:
            cause = error.__cause__
            problems = tuple(cause.errors) if isinstance(cause, PolicyError) else ()
            return Applied(self._layer, refused=str(error), problems=problems)
        before = self._policies.change_in_force(self._layer)
        if before is not None and before.digest == digest_of_text(asked.text):
            version, other = await self._version(before), self._other_file(before)
            return Applied(self._layer, version, before, unchanged=True, other_file=other)
        change = await put_in_force(self._policies, asked)
        was = await self._version(before) or before.digest if before is not None else ""
        version, other = await self._version(change), self._other_file(change)
        return Applied(self._layer, version, change, before=was, other_file=other)

    async def _earlier(self, version: str | None) -> Change:
        """Return the newest change whose version is that one; without one, that before what is not undone yet."""
        from gateway.errors import NotFound
        from gateway.policy_versions.policy_change import is_named

        found = await self._policies.store.history(self._layer, _HISTORY)
        if version is None:
            return change_before(found)
        for change in found:
            if await is_named(self._policies, change, version):
                return change
        raise NotFound(f"no version {version!r}; `airlock policy history` lists those there are")

    async def _version(self, change: Change) -> str:
        """Return a version's name, "" where its text does not load any more."""
        from gateway.policy_versions.policies import version_of

        document = await self._document(change)
        return "" if document is None else version_of(document)

    async def describe(self, *, with_text: bool) -> dict[str, Any]:
        """Return what is in force."""
        from gateway.errors import NotFound
        from gateway.policy_versions.policies import layered
        from gateway.storage.policy_store import OPERATOR

        own, operator = self._policies.change_in_force(self._layer), self._policies.change_in_force(OPERATOR)
        if own is None:
            raise NotFound("nothing is in force here; `airlock policy apply` applies a policy")
        found = as_document(own, await self._version(own))
        over = None if self._layer == OPERATOR else operator
        found["operator"] = None if over is None else as_document(over, await self._version(over))
        documents = [await self._document(own), *([await self._document(over)] if over is not None else [])]
        loaded = [document for document in documents if document is not None]
        found["in_force"] = layered(*loaded).version if len(loaded) == len(documents) else ""
        found["file"] = self._file(own)
        if with_text:
            found["text"] = await self._policies.store.text(own.digest)
        return found

    def _other_file(self, own: Change) -> str:
        watched = self._file(own)
        return "" if watched is None or watched["state"] == "in force" else watched["path"]

    def _file(self, own: Change) -> dict[str, str] | None:
        """Return the file that the configuration names for the layer, and how it stands to what is in force."""
        from gateway.errors import Misconfigured
        from gateway.policy import PolicyError, load_policy
        from gateway.policy_versions.policy_check import read_policy_file
        from gateway.storage.policy_store import OPERATOR, digest_of_text

        config = self._config
        named = config.operator_policy if self._layer == OPERATOR else config.tenants[self._layer].policy_file
        if named is None:
            return None
        path = config.path(named)
        try:
            text = read_policy_file(path, "the file")
            state = "in force" if digest_of_text(text) == own.digest else "not what is in force"
            load_policy(text, str(path))
        except Misconfigured:
            state = "cannot be read"
        except PolicyError:
            state = "does not load, and is not in force"
        return {"path": str(path), "state": state}

    async def _document(self, change: Change) -> PolicyDocument | None:
        from gateway.policy_versions.policies import stored_document

        try:
            return stored_document(await self._policies.store.text(change.digest))
        except ValueError:
            return None
