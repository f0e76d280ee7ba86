"""The versions of a layer of policy, stored on a gateway or in the database of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gateway.policy import PolicyProblem
    from gateway.storage.policy_store import Change

_HISTORY = 1000


@dataclass(frozen=True)
class PolicyEdit:
    """A change to a layer: a text, or an earlier version. On a gateway, the key is the author."""

    text: str = ""
    source: str = ""
    version: str = ""
    by: str = ""
    comment: str = ""
    expected_version: str | None = None


@dataclass(frozen=True)
class Applied:
    """The result of an edit: a change, or why it was refused.

    `other_file` is the layer's policy file if it differs from the version now in force.
    """

    version: str = ""
    change: Change | None = None
    before: str = ""
    unchanged: bool = False
    refused: str = ""
    problems: tuple[PolicyProblem, ...] = ()
    other_file: str = ""


class PolicyRefused(Exception):
    """A policy does not load or does not fit the configuration; nothing was changed."""

    def __init__(self, message: str, problems: Sequence[PolicyProblem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class PolicyBackend(Protocol):
    """The versions of all layers. Raises NotFound for an unknown version."""

    async def put(self, layer: str, edit: PolicyEdit) -> None:
        """Put a version in force. Raises PolicyRefused, and PolicyChanged if the expected version is not in force."""
        ...

    async def history(self, layer: str, limit: int) -> Sequence[tuple[Change, str]]:
        """Return the changes, newest first, each with its version, "" if it no longer loads."""
        ...

    async def text(self, change: Change) -> str:
        """Return the text of the change that is in force in its layer."""
        ...

    def watched_file(self, change: Change) -> dict[str, str] | None:
        """Return the path and state of the layer's policy file; None if there is none or it is unknown."""
        ...


class LayerVersions:
    """The versions of one layer, which is a tenant's name or "" for the operator's."""

    def __init__(self, backend: PolicyBackend, layer: str) -> None:
        self._backend = backend
        self._layer = layer

    async def history(self, limit: int) -> Sequence[tuple[Change, str]]:
        """Return the changes, newest first."""
        return await self._backend.history(self._layer, limit)

    async def apply(self, edit: PolicyEdit) -> Applied:
        """Apply an edit if it loads and fits the configuration."""
        before = await self.history(1)
        try:
            await self._backend.put(self._layer, edit)
        except PolicyRefused as error:
            return Applied(refused=str(error), problems=error.problems)
        (change, version), *_ = await self.history(1)
        file = self._backend.watched_file(change)
        other_file = "" if file is None or file["state"] == "in force" else file["path"]
        if not before or before[0][0] == change:
            return Applied(version, change, unchanged=bool(before), other_file=other_file)
        return Applied(version, change, before=before[0][1] or before[0][0].digest, other_file=other_file)

    async def rollback(self, version: str | None, *, by: str, comment: str) -> Applied:
        """Put an earlier version in force again; by default, undo the last change that is not undone."""
        if version is None:
            version = _change_before([change for change, _ in await self.history(_HISTORY)]).digest
        return await self.apply(PolicyEdit(version=version, by=by, comment=comment))

    async def describe(self, *, with_text: bool) -> dict[str, Any]:
        """Return what is in force, as a document."""
        from gateway.errors import NotFound
        from gateway.policy import Policy
        from gateway.policy_versions.policies import stored_document
        from gateway.storage.policy_store import OPERATOR

        found = list(await self.history(1))
        if not found:
            raise NotFound("no policy is in force here: run `airlock policy apply`")
        if self._layer != OPERATOR:
            found += await self._backend.history(OPERATOR, 1)
        texts = [await self._backend.text(change) for change, _ in found]
        try:
            in_force = Policy(*map(stored_document, texts)).version
        except ValueError:  # of another release
            in_force = ""
        own, operator = as_document(*found[0]), as_document(*found[1]) if len(found) > 1 else None
        reported = own | {"operator": operator, "in_force": in_force, "file": self._backend.watched_file(found[0][0])}
        return reported | {"text": texts[0]} if with_text else reported


def as_document(change: Change, version: str) -> dict[str, Any]:
    """Return a change as JSON."""
    return {
        "tenant": change.tenant or None,
        "version": version,
        # A gateway does not report digests.
        **({} if change.digest == version else {"digest": change.digest}),
        "kind": change.kind,
        "by": change.by,
        "comment": change.comment,
        "at": time_of(change.at_us),
    }


def time_of(at_us: int) -> str:
    """Format microseconds since 1970."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="seconds")


def _change_before(newest_first: Sequence[Change]) -> Change:
    """Return the change before the last one that no rollback has undone. Raises NotFound."""
    from gateway.errors import NotFound

    standing: list[Change] = []
    for change in reversed(newest_first):
        if change.kind == "rollback":
            before = [n for n, earlier in enumerate(standing[:-1]) if earlier.digest == change.digest]
            if before:
                del standing[before[-1] + 1 :]
                continue
        if not standing or standing[-1].digest != change.digest:
            standing.append(change)
    if len(standing) < 2:
        raise NotFound("there is no earlier version to roll back to: `airlock policy history` lists the versions")
    return standing[-2]
