"""Versions of policies on a gateway, changed with an operator key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.cli.command import taken
from gateway.cli.policy_backend import PolicyEdit, PolicyRefused

if TYPE_CHECKING:
    from gateway.client import Client
    from gateway.client.admin import PolicyChange
    from gateway.storage.policy_store import Change


class RemotePolicies:
    """The versions of all layers on a gateway."""

    def __init__(self, airlock: Client) -> None:
        self._airlock = airlock

    async def put(self, layer: str, edit: PolicyEdit) -> None:
        from gateway.errors import PolicyInvalid
        from gateway.policy import PolicyProblem

        try:
            await self._airlock.apply_policy(
                layer,
                edit.text,
                version=edit.version,
                comment=edit.comment,
                expected_version=edit.expected_version,
            )
        except PolicyInvalid as error:
            problems = json.loads(error.details.get("problems", "[]"))
            raise PolicyRefused(str(error), [PolicyProblem(**problem) for problem in problems]) from error

    async def history(self, layer: str, limit: int) -> Sequence[tuple[Change, str]]:
        newest_first = await taken(self._airlock.policy_changes(layer), limit)
        return [(_change(one), one.version) for one in newest_first]

    async def text(self, change: Change) -> str:
        return (await self._airlock.policy(change.tenant)).text

    def watched_file(self, change: Change) -> None:
        """Return None: a gateway does not report which file it watches."""


def _change(one: PolicyChange) -> Change:
    """Return a change in the form of the database; its digest is its version."""
    from gateway.storage.policy_store import Change

    at_us = round(one.at.timestamp() * 1_000_000)
    kind: Any = one.kind
    return Change(0, one.tenant, one.version, kind, one.by, one.comment, at_us)
