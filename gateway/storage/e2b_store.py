"""The threads that E2B's SDKs see as sandboxes. A row goes with its thread.

What a caller changes here and nowhere else is in the audit. Creating, pausing, resuming and killing change a thread
too, whose records say so.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, literal, select, tuple_, update

from gateway.storage.audit_store import AuditEntry
from gateway.storage.insertion import insert_new
from gateway.storage.queries import Queries, mapped, transaction, with_thread
from gateway.storage.tables import e2b_sandboxes, threads
from gateway.support.paging import Place

RUNNING, PAUSED, ENDING = "running", "paused", "ending"
_KEYS_LIMIT = 8
_OF = e2b_sandboxes.c


@dataclass(frozen=True)
class E2bSandbox:
    """A sandbox as E2B's SDKs see it. Times are UTC microseconds since 1970; `ends_us` is None while it is paused.

    `key_ids` are the keys that hold an access token, made of `secret`. `options` is what its creator asked for.
    """

    id: str
    tenant: str
    thread: str
    state: str
    created_us: int
    ends_us: int | None
    options: Mapping[str, Any]
    key_ids: Sequence[str]
    secret: str


class E2bStore(Queries):
    """The sandboxes of all tenants."""

    @transaction
    def add(self, connection: Connection, sandbox: E2bSandbox) -> bool:
        """Store a sandbox of a thread that exists; False if the thread is gone, or another sandbox has the id."""
        which = select(threads.c.id).where(threads.c.tenant == sandbox.tenant, threads.c.name == sandbox.thread)
        found = connection.execute(which).first()
        if found is None:
            return False
        row = {**vars(sandbox), "thread_id": found.id}
        row |= {"options": json.dumps(sandbox.options), "key_ids": json.dumps(list(sandbox.key_ids))}
        del row["thread"]
        return (
            connection.execute(insert_new(e2b_sandboxes, connection.dialect.name).returning(_OF.id), row).first()
            is not None
        )

    async def get(self, sandbox_id: str) -> E2bSandbox | None:
        found = await self._database.first(
            with_thread(e2b_sandboxes).where(_OF.id == sandbox_id, _OF.state != ENDING), foremost=True
        )
        return None if found is None else _sandbox(found)

    async def options_of(self, thread_id: str) -> Mapping[str, Any] | None:
        """Return the options of the sandbox that a thread is; None if it is none."""
        found = await self._database.scalar(select(_OF.options).where(_OF.thread_id == thread_id))
        options: Mapping[str, Any] | None = None if found is None else json.loads(found)
        return options

    async def page(
        self, tenant: str, *, states: Collection[str], ascending: bool, since_us: int, after: Place | None, limit: int
    ) -> Sequence[E2bSandbox]:
        """Return a tenant's sandboxes by the time of their creation, past the place of another."""
        query = with_thread(e2b_sandboxes).where(_OF.tenant == tenant, _OF.state.in_(states))
        if since_us:
            query = query.where(_OF.created_us >= since_us)
        key: Any = tuple_(_OF.created_us, _OF.id)
        if after is not None:
            place: Any = tuple_(literal(after[0]), literal(after[1]))
            query = query.where(key > place if ascending else key < place)
        order = [_OF.created_us, _OF.id] if ascending else [_OF.created_us.desc(), _OF.id.desc()]
        return [_sandbox(row) for row in await self._database.rows(query.order_by(*order).limit(limit))]

    async def due(self, limit: int, *, but_of: Collection[str] = ()) -> Sequence[E2bSandbox]:
        """Return sandboxes whose time is over, the longest first, except those of some tenants."""
        query = with_thread(e2b_sandboxes).where(_OF.ends_us <= self.clock(), _OF.tenant.not_in(but_of))
        return [_sandbox(row) for row in await self._database.rows(query.order_by(_OF.ends_us).limit(limit))]

    async def take_due(self, sandbox: E2bSandbox, again_us: int) -> bool:
        """Take a due sandbox, which is due again at a time if this fails; False if another process has it."""
        return bool(await self._change(sandbox.id, _OF.ends_us == sandbox.ends_us, ends_us=again_us))

    async def end(self, sandbox_id: str, again_us: int) -> bool:
        """Mark a sandbox as ending: it is seen no more, and its end is tried again at a time. False if it is gone."""
        return bool(await self._change(sandbox_id, state=ENDING, ends_us=again_us))

    async def pause(self, sandbox_id: str) -> bool:
        """Mark a running sandbox as paused; False if it is not running."""
        return bool(await self._change(sandbox_id, _OF.state == RUNNING, state=PAUSED, ends_us=None))

    async def run(self, sandbox_id: str, ends_us: int) -> bool:
        """Mark a paused sandbox as running until a time; False if it is not paused."""
        return bool(await self._change(sandbox_id, _OF.state == PAUSED, state=RUNNING, ends_us=ends_us))

    @transaction
    def set_end(
        self, connection: Connection, sandbox: E2bSandbox, ends_us: int, by: str, *, later_only: bool = False
    ) -> bool:
        """Set when a running sandbox ends, with `later_only` only if that is later; False if it is not running."""
        later = (_OF.ends_us < ends_us,) if later_only else ()
        running = update(e2b_sandboxes).where(_OF.id == sandbox.id, _OF.state == RUNNING, *later)
        changed = bool(connection.execute(running.values(ends_us=ends_us)).rowcount)
        if changed:
            self.audit.append(connection, _entry(sandbox, by, ends_us=ends_us))
        return changed

    @transaction
    def set_option(self, connection: Connection, sandbox: E2bSandbox, name: str, value: Any, by: str) -> None:
        """Change one of the options of a sandbox."""
        which = _OF.id == sandbox.id
        found = connection.execute(select(_OF.options).where(which).with_for_update()).scalar()
        if found is not None:
            options = json.dumps({**json.loads(found), name: value})
            connection.execute(update(e2b_sandboxes).where(which).values(options=options))
            self.audit.append(connection, _entry(sandbox, by, **{name: value}))

    @transaction
    def hold(self, connection: Connection, sandbox: E2bSandbox, key_id: str, by: str) -> None:
        """Let a key hold an access token; beyond a limit the key that came first loses its own."""
        which = _OF.id == sandbox.id
        found = connection.execute(select(_OF.key_ids).where(which).with_for_update()).scalar()
        if found is None:
            return
        held = json.loads(found)
        kept = [one for one in held if one != key_id][1 - _KEYS_LIMIT :]
        connection.execute(update(e2b_sandboxes).where(which).values(key_ids=json.dumps([*kept, key_id])))
        if key_id not in held:
            self.audit.append(connection, _entry(sandbox, by, token_for=key_id))

    async def _change(self, sandbox_id: str, *where: ColumnElement[bool], **values: Any) -> int:
        return await self._execute(update(e2b_sandboxes).where(_OF.id == sandbox_id, *where).values(**values))


def _entry(sandbox: E2bSandbox, by: str, **changed: Any) -> AuditEntry:
    return AuditEntry(sandbox.tenant, "e2b_sandbox_changed", actor=by, thread=sandbox.thread, details=changed)


def _sandbox(row: Row[Any]) -> E2bSandbox:
    return mapped(E2bSandbox, row, options=json.loads(row.options), key_ids=tuple(json.loads(row.key_ids)))
