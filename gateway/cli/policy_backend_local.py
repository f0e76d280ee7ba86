"""Versions of policies in the database of a configuration, for which no operator key is needed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from gateway.cli.key_backend import check_tenant, local_database
from gateway.cli.policy_backend import PolicyEdit, PolicyRefused

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.policy_versions.policies import Policies
    from gateway.policy_versions.policy_change import PolicyChangeRequest
    from gateway.storage.policy_store import Change

_HISTORY = 1000


@contextlib.asynccontextmanager
async def local_policies(config: Config, layer: str) -> AsyncIterator[LocalPolicies]:
    """Open the policies of a configuration. Raises Misconfigured for the layer of an unknown tenant."""
    from gateway.policy_versions.policies import Policies
    from gateway.storage.policy_store import OPERATOR, PolicyStore

    if layer != OPERATOR:
        check_tenant(config, layer)
    async with local_database(config) as database:
        policies = Policies(PolicyStore(database))
        try:
            await policies.open()
            yield LocalPolicies(config, policies)
        finally:
            policies.close()


class LocalPolicies:
    """The versions of all layers."""

    def __init__(self, config: Config, policies: Policies) -> None:
        self._policies = policies
        self._config = config

    async def put(self, layer: str, edit: PolicyEdit) -> None:
        from gateway.agents.tenant_agents import agents_of_all
        from gateway.errors import Misconfigured
        from gateway.policy import PolicyError
        from gateway.policy_versions.policy_change import put_in_force
        from gateway.policy_versions.policy_check import PolicyChecker
        from gateway.storage.policy_store import digest_of_text

        asked, source = await self._asked(layer, edit)
        try:
            checker = PolicyChecker(self._config, agents_of_all(self._config))
            await checker.check(layer, asked.text, source, self._policies)
        except Misconfigured as error:
            cause = error.__cause__
            raise PolicyRefused(str(error), cause.errors if isinstance(cause, PolicyError) else ()) from error
        standing = self._policies.change_in_force(layer)
        if standing is None or standing.digest != digest_of_text(asked.text):
            await put_in_force(self._policies, asked)

    async def history(self, layer: str, limit: int) -> Sequence[tuple[Change, str]]:
        changes = await self._policies.store.history(layer, limit)
        return [(change, await self._version(change)) for change in changes]

    async def text(self, change: Change) -> str:
        return await self._policies.store.text(change.digest)

    def watched_file(self, change: Change) -> dict[str, str] | None:
        from gateway.errors import Misconfigured
        from gateway.policy import PolicyError, load_policy
        from gateway.policy_versions.policy_check import read_policy_file
        from gateway.storage.policy_store import OPERATOR, digest_of_text

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

    async def _asked(self, layer: str, edit: PolicyEdit) -> tuple[PolicyChangeRequest, str]:
        """Return the requested change, and the name of its text in messages."""
        from gateway.errors import NotFound
        from gateway.policy_versions.policy_change import PolicyChangeRequest, is_named

        if not edit.version:
            asked = PolicyChangeRequest(layer, edit.text, "apply", edit.by, edit.comment, edit.expected_version)
            return asked, edit.source
        for change in await self._policies.store.history(layer, _HISTORY):
            if await is_named(self._policies, change, edit.version):
                text = await self.text(change)
                return PolicyChangeRequest(layer, text, "rollback", edit.by, edit.comment), f"change {change.id}"
        raise NotFound(f"version {edit.version!r} not found: `airlock policy history` lists the versions")

    async def _version(self, change: Change) -> str:
        from gateway.policy_versions.policies import stored_document, version_of

        try:
            return version_of(stored_document(await self.text(change)))
        except ValueError:
            return ""
