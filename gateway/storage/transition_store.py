"""The queries of sandboxes' history: state transitions, written in batches and read in pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, insert, literal, or_, select

from gateway.storage.queries import Queries, matching, transaction, with_thread
from gateway.storage.tables import sandbox_transitions, threads
from gateway.storage.thread_store import is_there

_ROWS = sandbox_transitions.c
REASON_CHARS = 512
# States in which a sandbox stays until something acts on it.
_STILL = ("idle_stopped", "failed", "removed")


@dataclass(frozen=True)
class NewTransition:
    """A sandbox's transition as its engine reports it; `at_us` is UTC microseconds since 1970.

    `after` is set by a reporter that only found the sandbox in this state: the id of the transition before, so that a
    newer report wins. `observed` is that of Transition.
    """

    tenant: str
    thread: str
    sandbox: str
    state: str
    reason: str
    at_us: int
    after: int | None = None
    observed: bool = False


@dataclass(frozen=True)
class StoredTransition:
    """A transition as it is listed; ids increase."""

    id: int
    thread: str
    engine: str
    sandbox: str
    state: str
    reason: str
    at_us: int


@dataclass(frozen=True)
class Unfinished:
    """The last transition of a sandbox that has not come to its end."""

    id: int
    tenant: str
    thread: str
    sandbox: str
    state: str


class TransitionStore(Queries):
    """Typed access to the history of sandboxes."""

    @transaction
    def add(self, connection: Connection, engine: str, transitions: Sequence[NewTransition]) -> None:
        """Write transitions in their order, except those of a thread that is gone or being deleted.

        A transition without a thread's name belongs to the thread of its sandbox's last one. A final state (stopped,
        failed, removed) is written once: both the cause and a later observer report it. Nothing is written after
        "removed": the process that removed a sandbox may be quicker to report it than the one that stopped it before.
        The thread's row is locked meanwhile, so that a deletion that begins waits, and finds what was written.
        """
        for one in transitions:
            row: dict[str, str | int] = {name: getattr(one, name) for name in ("tenant", "sandbox", "state", "at_us")}
            row |= {"engine": engine, "reason": one.reason[:REASON_CHARS]}
            found = select(threads.c.id, *map(literal, row.values())).where(
                threads.c.tenant == one.tenant, is_there(), _thread_of(one), _is_new(one)
            )
            adding = insert(sandbox_transitions).from_select(["thread_id", *row], found.with_for_update(read=True))
            connection.execute(adding)

    async def page(
        self, tenant: str, *, thread: str | None, before: int | None, limit: int
    ) -> Sequence[StoredTransition]:
        query = _listed(tenant, thread)
        if before is not None:
            query = query.where(_ROWS.id < before)
        return await self._all(StoredTransition, query.order_by(_ROWS.id.desc()).limit(limit))

    async def after(self, tenant: str, *, thread: str | None, after: int, limit: int) -> Sequence[StoredTransition]:
        """Return transitions after an id, oldest first; no smaller id is written later, since writers take turns."""
        query = _listed(tenant, thread).where(_ROWS.id > after).order_by(_ROWS.id).limit(limit)
        return await self._all(StoredTransition, query)

    async def unfinished(self, engine: str, *, since: int) -> Sequence[Unfinished]:
        """Return the last transition of each sandbox of an engine that still exists, from an id on."""
        later, earlier = sandbox_transitions.alias(), sandbox_transitions.alias()
        none_later = ~exists().where(later.c.sandbox == _ROWS.sandbox, later.c.id > _ROWS.id)
        ran = exists().where(earlier.c.sandbox == _ROWS.sandbox, earlier.c.state == "running")
        no_end = and_(_ROWS.state != "removed", or_(_ROWS.state != "failed", ran))
        query = (
            with_thread(sandbox_transitions, _ROWS.id, _ROWS.tenant, _ROWS.sandbox, _ROWS.state)
            .where(_ROWS.id >= since, _ROWS.engine == engine, no_end, none_later)
            .order_by(_ROWS.id)
        )
        return await self._all(Unfinished, query)


def _listed(tenant: str, thread: str | None) -> Select[Any]:
    return with_thread(sandbox_transitions).where(_ROWS.tenant == tenant, *matching({threads.c.name: thread}))


def _thread_of(one: NewTransition) -> ColumnElement[bool]:
    """Return the condition for a transition's thread: its name or, if unknown, that of the sandbox's last one."""
    if one.thread:
        return threads.c.name == one.thread
    last = select(_ROWS.thread_id).where(_ROWS.tenant == one.tenant, _ROWS.sandbox == one.sandbox)
    return threads.c.id == last.order_by(_ROWS.id.desc()).limit(1).scalar_subquery()


def _is_new(one: NewTransition) -> ColumnElement[bool]:
    """Return the condition that a transition is new, and follows the one that it must follow."""
    of_it = and_(_ROWS.tenant == one.tenant, _ROWS.sandbox == one.sandbox)
    if one.after is not None:
        return select(func.max(_ROWS.id)).where(of_it).scalar_subquery() == one.after
    newest = select(_ROWS.state).where(of_it).order_by(_ROWS.id.desc()).limit(1).scalar_subquery()
    if one.state == "creating":  # another process may have found it running, and been quicker to report that
        return newest.is_(None)
    if one.observed:
        return func.coalesce(newest, "creating") == "creating"
    repeated = {one.state} if one.state in _STILL else set()
    return func.coalesce(newest, "").not_in({*repeated, "removed"})
