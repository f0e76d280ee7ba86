"""Versions of policies, on the database of a configuration as over the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gateway.policy import PolicyProblem
    from gateway.storage.policy_store import Change


@dataclass(frozen=True)
class Applied:
    """What came of it: a change, or why there is none.

    `other_file` is the file that gateways watch for the layer where it says something else than what is in force now.
    """

    tenant: str
    version: str = ""
    change: Change | None = None
    before: str = ""
    unchanged: bool = False
    refused: str = ""
    problems: tuple[PolicyProblem, ...] = ()
    other_file: str = ""


class PolicyBackend(Protocol):
    """What can be done with the versions of one layer. Raises NotFound for a version that is not there."""

    async def apply(
        self, text: str, source: str, *, by: str, comment: str, expected_version: str | None = None
    ) -> Applied:
        """Put a text in force, if it loads and fits. PolicyChanged where the version expected is not in force."""
        ...

    async def rollback(self, version: str | None, *, by: str, comment: str) -> Applied:
        """Put an earlier version in force again; without one, what was there before what is not undone yet."""
        ...

    async def history(self, limit: int) -> Sequence[tuple[Change, str]]:
        """Return what was in force, the newest first, each with its version, "" where it does not load any more."""
        ...

    async def describe(self, *, with_text: bool) -> dict[str, Any]:
        """Return what is in force, as a document."""
        ...


def as_document(change: Change, version: str) -> dict[str, Any]:
    """Return a change as programs get it."""
    return {
        "tenant": change.tenant or None,
        "version": version,
        # A gateway reports versions alone.
        **({} if change.digest == version else {"digest": change.digest}),
        "kind": change.kind,
        "by": change.by,
        "comment": change.comment,
        "at": time_of(change.at_us),
    }


def change_before(newest_first: Sequence[Change]) -> Change:
    """Return what was in force before the last change that no rollback has undone. NotFound."""
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
        raise NotFound("there is no version to go back to; `airlock policy history` lists those there are")
    return standing[-2]


def time_of(at_us: int) -> str:
    """Return microseconds since 1970 as people read them."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="seconds")
