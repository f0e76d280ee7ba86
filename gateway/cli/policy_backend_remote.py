"""Versions of policies over the API: an operator's key needs no access to the database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.cli.command import taken
from gateway.cli.policy_backend import Applied, as_document, change_before

if TYPE_CHECKING:
    from gateway.client import Client
    from gateway.client.admin import PolicyChange
    from gateway.errors import PolicyInvalid
    from gateway.policy import PolicyProblem
    from gateway.storage.policy_store import Change

_HISTORY = 1000


class RemotePolicies:
    """The versions of one layer on a gateway; the key says who does it."""

    def __init__(self, airlock: Client, layer: str) -> None:
        self._airlock = airlock
        self._layer = layer

    async def apply(
        self, text: str, source: str, *, by: str, comment: str, expected_version: str | None = None
    ) -> Applied:
        """Put a text in force."""
        del source, by
        return await self._put(text=text, comment=comment, expected_version=expected_version)

    async def rollback(self, version: str | None, *, by: str, comment: str) -> Applied:
        """Put an earlier version in force again."""
        del by
        if version is None:
            version = change_before([change for change, _ in await self.history(_HISTORY)]).digest
        return await self._put(version=version, comment=comment)

    async def history(self, limit: int) -> Sequence[tuple[Change, str]]:
        """Return what was in force, the newest first."""
        newest_first = await taken(self._airlock.policy_changes(self._layer), limit)
        return [(_change(one), one.version) for one in newest_first]

    async def describe(self, *, with_text: bool) -> dict[str, Any]:
        """Return what is in force; the gateway does not tell which file it watches."""
        from gateway.errors import NotFound
        from gateway.policy_versions.policies import layered, stored_document
        from gateway.storage.policy_store import OPERATOR

        newest = await self.history(1)
        if not newest:
            raise NotFound("nothing is in force here; `airlock policy apply` applies a policy")
        (own, version), over = newest[0], []
        if self._layer != OPERATOR:
            over = list(await RemotePolicies(self._airlock, OPERATOR).history(1))
        text = (await self._airlock.policy(self._layer)).text
        texts = [text, *[(await self._airlock.policy(OPERATOR)).text for _ in over]]
        try:
            in_force = layered(*map(stored_document, texts)).version
        except ValueError:  # a gateway of another release
            in_force = ""
        operator = as_document(*over[0]) if over else None
        told = as_document(own, version) | {"operator": operator, "in_force": in_force, "file": None}
        return told | {"text": text} if with_text else told

    async def _put(
        self, *, text: str = "", version: str = "", comment: str, expected_version: str | None = None
    ) -> Applied:
        from gateway.errors import PolicyInvalid

        before = await self.history(1)
        try:
            applied = await self._airlock.apply_policy(
                self._layer, text, version=version, comment=comment, expected_version=expected_version
            )
        except PolicyInvalid as error:
            return Applied(self._layer, refused=str(error), problems=_problems(error))
        (change, _), *_ = await self.history(1)
        return Applied(
            self._layer,
            applied,
            change,
            before=before[0][1] if before and before[0][0] != change else "",
            unchanged=bool(before) and before[0][0] == change,
        )


def _change(one: PolicyChange) -> Change:
    """Return a change as the database's readers have it; its version stands for its digest, which is not told."""
    from gateway.storage.policy_store import Change

    at_us = round(one.at.timestamp() * 1_000_000)
    kind: Any = one.kind
    return Change(0, one.tenant, one.version, kind, one.by, one.comment, at_us)


def _problems(error: PolicyInvalid) -> tuple[PolicyProblem, ...]:
    from gateway.policy import PolicyProblem

    return tuple(PolicyProblem(**problem) for problem in json.loads(error.details.get("problems", "[]")))
