"""The journal of tool calls: which begin to execute, their outcomes, those of lost gateways, and request ids."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, select, tuple_, update

from gateway.storage.audit_store import AuditEntry, AuditStore, shared
from gateway.storage.database import ConstraintViolated, Database
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, mapped, transaction, with_thread
from gateway.storage.run_writes import Claim, check_claim
from gateway.storage.tables import runs, tool_calls

INTERRUPTED_REASON = "the gateway stopped while this was under way; what it had done by then is not known"
_PAGE_ROWS = 200
_CALLS = tool_calls.c
_OUTCOME_COLUMNS = (
    *("state", "verdict", "rule", "reason", "outcome", "exit_code", "is_error", "result_bytes"),
    *("policy_version", "would_be", "would_be_rule", "approval_id", "result"),
)
_BEGIN_TOOL_CALL = Prepared(insert(tool_calls))
_FINISH_TOOL_CALL = Prepared(
    update(tool_calls)
    .where(_CALLS.id == bindparam("finished_id"), _CALLS.state == "executing")
    .values({name: bindparam(name) for name in (*_OUTCOME_COLUMNS, "finished_us")})
)
_IS_THERE = Prepared(select(_CALLS.id).where(_CALLS.id == bindparam("whose")))
# The databases' messages: a trigger of ours, SQLite for any foreign key, PostgreSQL by the key's name.
_GONE = (
    "the thread is being deleted",
    *("FOREIGN KEY constraint failed", "fk_tool_calls_thread_id", "fk_runs_thread_id"),
)
REMEMBERED_US = 24 * 3600 * 1_000_000
"""How long a tool call's request id is remembered; a run's as long as the run."""

_CALL_OF = Prepared(
    select(_CALLS.id, _CALLS.name, _CALLS.state, _CALLS.result, _CALLS.started_us)
    .add_columns(_CALLS.request_digest.label("digest"))
    .where(_CALLS.tenant == bindparam("of_tenant"), _CALLS.request_id == bindparam("asked"))
)
_RUN_OF = Prepared(
    select(runs.c.id, runs.c.request_digest).where(
        runs.c.tenant == bindparam("of_tenant"), runs.c.request_id == bindparam("asked")
    )
)
# The constraint in the databases' messages: PostgreSQL has its name, SQLite its columns.
_REQUEST_ID = ("uq_tool_calls_request_id", "tool_calls.tenant, tool_calls.request_id")
FORGOTTEN = {"request_id": None, "request_digest": None, "result": None}


class CallErased(Exception):
    """The row of a finished call was deleted with its tenant: the outcome must not be shown."""


def is_of_deletion(error: ConstraintViolated) -> bool:
    """Return whether a run or a call was refused because its thread is being deleted, or is gone."""
    return any(name in str(error) for name in _GONE)


def is_of_request_id(error: ConstraintViolated) -> bool:
    """Return whether a call was refused because another has its request id."""
    return any(name in str(error) for name in _REQUEST_ID)


@dataclass(frozen=True)
class RequestedCall:
    """The journal's row of a call with a request id. `result` is JSON, see gateway/tool_calls/tool_request.py."""

    id: str
    name: str
    digest: str
    state: str
    result: str | None


class CallJournal(Queries):
    """The journal of calls with their audit entries, and the request ids of calls and runs."""

    async def calls_under_way(self, run_id: str) -> bool:
        return await self._has(_CALLS.id, _CALLS.run_id == run_id, _CALLS.state == "executing")

    async def write_tool_call(
        self, row: dict[str, Any], *, claim: Claim | None = None, audited: Sequence[AuditEntry] = ()
    ) -> None:
        """Journal a tool call that is about to execute, that was blocked, or that only read and is over.

        With the `claim` of its run it raises LeaseLost if another gateway has that run. A call that is repeated under
        its id replaces the row of an earlier attempt. Raises ConstraintViolated if this attempt is written already, or
        its thread is being deleted: see is_of_deletion().
        """
        begun = self._begun(row)

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
                if row.get("read_only"):
                    other = _CALLS.gateway.is_distinct_from(begun["gateway"]) | (
                        _CALLS.started_us != begun["started_us"]
                    )
                    earlier = (_CALLS.id == row["id"]) & _CALLS.read_only & other
                    connection.execute(delete(tool_calls).where(earlier))
            _BEGIN_TOOL_CALL.execute(connection, begun)
            self.audit.append(connection, *audited)

        await self._database.transact(work, apart=False, short=True)

    async def write_unexecuted_call(
        self, row: dict[str, Any], *, claim: Claim | None = None, audited: Sequence[AuditEntry] = ()
    ) -> None:
        """Journal a call that did not execute because its beginning could not be journaled; its request id is free.

        If the beginning was written after all, in a commit without a known result, the row gets this outcome.
        """
        begun = self._begun(row)
        ended = {name: row.get(name) for name in _OUTCOME_COLUMNS}
        ended |= {"finished_us": self.clock(), "request_id": None, "request_digest": None}
        was_begun = (_CALLS.id == row["id"]) & (_CALLS.state == "executing")

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
            if not connection.execute(update(tool_calls).where(was_begun).values(ended)).rowcount:
                _BEGIN_TOOL_CALL.execute(connection, begun)
            self.audit.append(connection, *audited)

        await self._database.transact(work, apart=False)

    async def finish_tool_call(
        self, call_id: str, changes: dict[str, Any], *, claim: Claim | None = None, audited: Sequence[AuditEntry] = ()
    ) -> None:
        """Journal and audit a call's outcome, unless it has one; CallErased if its row is gone."""
        if unknown := changes.keys() - set(_OUTCOME_COLUMNS):
            raise ValueError(f"not columns of an outcome: {sorted(unknown)}")
        row = dict.fromkeys(_OUTCOME_COLUMNS) | changes | {"finished_us": self.clock(), "finished_id": call_id}

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
            if _FINISH_TOOL_CALL.execute(connection, row).rowcount:
                self.audit.append(connection, *audited)
            elif _IS_THERE.execute(connection, {"whose": call_id}).first() is None:
                raise CallErased(call_id)

        await self._database.transact(work, apart=False, short=True)

    def _begun(self, row: Mapping[str, Any]) -> dict[str, Any]:
        now_us = self.clock()
        over = {} if row["state"] == "executing" else {"finished_us": now_us}
        return {"started_us": now_us, "gateway": self.gateway, **over, **row}

    @transaction
    def take_over_calls(
        self, connection: Connection, claim: Claim, call_ids: Collection[str]
    ) -> Mapping[str, dict[str, Any]]:
        """Return the journal's rows of calls of a claimed run, by id, as they were before.

        All open calls of the run are journaled as interrupted, except those of `call_ids` that only read: they may be
        repeated.
        """
        asked = _CALLS.id.in_(list(call_ids)) & (_CALLS.run_id == claim.run_id)
        again = asked & _CALLS.read_only
        under_way = (_CALLS.run_id == claim.run_id) & (_CALLS.state == "executing")
        check_claim(connection, claim)
        found = connection.execute(select(tool_calls).where(asked)).all()
        interrupt_calls(connection, self.audit, under_way & ~again, self.clock())
        return {row.id: dict(row._mapping) for row in found}  # noqa: SLF001 - _mapping is public

    async def tool_call(self, tenant: str, call_id: str) -> dict[str, Any] | None:
        query = select(tool_calls).where(_CALLS.id == call_id, _CALLS.tenant == tenant)
        found = await self._database.first(query)
        return None if found is None else dict(found._mapping)  # noqa: SLF001 - _mapping is public

    # --- request ids ---

    async def call_of(self, tenant: str, request_id: str) -> RequestedCall | None:
        """Return the call that a request id was given to; after 24 hours it is forgotten."""
        found = await self._database.look(_CALL_OF, {"of_tenant": tenant, "asked": request_id})
        if not found:
            return None
        row = found[0]
        if row.started_us <= self.clock() - REMEMBERED_US and row.state != "executing":
            await self.forget(tenant, row.id)
            return None
        return mapped(RequestedCall, row)

    async def remember(self, tenant: str, call_id: str, request_id: str, digest: str, result: str | None) -> bool:
        """Give a finished call its request id and remembered result; False if another call has the id."""
        kept = {"request_id": request_id, "request_digest": digest, "result": result}
        try:
            await self._change(tenant, call_id, kept)
        except ConstraintViolated:
            return False
        return True

    async def forget(self, tenant: str, call_id: str) -> None:
        await self._change(tenant, call_id, FORGOTTEN)

    async def _change(self, tenant: str, call_id: str, changes: Mapping[str, str | None]) -> None:
        whose = (_CALLS.id == call_id) & (_CALLS.tenant == tenant)
        await self._database.write((update(tool_calls).where(whose).values(changes), None))

    async def run_of(self, tenant: str, request_id: str) -> tuple[str, str] | None:
        found = await self._database.look(_RUN_OF, {"of_tenant": tenant, "asked": request_id})
        return (found[0].id, found[0].request_digest) if found else None


def interrupt_calls(connection: Connection, audit: AuditStore, which: ColumnElement[bool], at_us: int) -> int:
    """Journal calls whose gateway was lost as interrupted, and append that to the audit; return how many there were."""
    query = (
        with_thread(tool_calls, tool_calls, runs.c.started_by)
        .outerjoin(runs, _CALLS.run_id == runs.c.id)
        .where(which)
        .with_for_update(of=tool_calls)
    )
    entries = [
        AuditEntry(
            row.tenant,
            "tool_call",
            row.started_by or "gateway",
            **shared(row, "thread", "run_id", "arguments_digest", "rule", "policy_version"),
            call_id=row.id,
            tool=row.name,
            verdict=row.verdict or "allow",  # an executing call was allowed; its rule is written only when it ends
            outcome="interrupted",
        )
        for row in connection.execute(query)
    ]
    audit.append(connection, *entries)
    done = {"state": "interrupted", "outcome": "interrupted", "reason": INTERRUPTED_REASON, "is_error": True}
    return connection.execute(update(tool_calls).where(which).values(**done, finished_us=at_us)).rowcount


@dataclass(frozen=True)
class RecordedCall:
    """One call of the journal.

    `arguments` is the stored JSON, which may be cut: then its digest is not `arguments_digest`. `thread` is the
    thread's name, `agent` is "" for a call outside runs, `started_us` is UTC microseconds since 1970. `verdict` is None
    for a call that has none yet; `asked`: an approval was requested.
    """

    id: str
    tenant: str
    thread: str
    run_id: str
    agent: str
    tool: str
    arguments: str
    arguments_digest: str
    verdict: str | None
    rule: str
    asked: bool
    started_us: int


async def recorded_calls(database: Database, since_us: int, tenant: str | None = None) -> AsyncIterator[RecordedCall]:
    """Yield the calls since a time, of one tenant or of all, each tenant's oldest first, read page by page."""
    since = _CALLS.started_us >= since_us
    tenants = select(_CALLS.tenant).where(since).distinct().order_by(_CALLS.tenant)
    for one in [tenant] if tenant is not None else [row.tenant for row in await database.rows(tenants)]:
        async for call in _of_tenant(database, since_us, one):
            yield call


async def _of_tenant(database: Database, since_us: int, tenant: str) -> AsyncIterator[RecordedCall]:
    after_us, after_id = since_us, ""
    query = (
        with_thread(
            tool_calls,
            *(_CALLS[name] for name in ("id", "tenant", "arguments", "arguments_digest", "verdict", "started_us")),
            _CALLS.name.label("tool"),
            func.coalesce(_CALLS.rule, "").label("rule"),
            func.coalesce(_CALLS.run_id, "").label("run_id"),
            func.coalesce(runs.c.agent, "").label("agent"),
            _CALLS.approval_id.is_not(None).label("asked"),
        )
        .outerjoin(runs, runs.c.id == _CALLS.run_id)
        .where(_CALLS.tenant == tenant)
        .order_by(_CALLS.started_us, _CALLS.id)
        .limit(_PAGE_ROWS)
    )
    while True:
        # The first condition is for the index; the second separates calls of the same microsecond.
        beyond = tuple_(_CALLS.started_us, _CALLS.id) > (after_us, after_id)
        page = await database.rows(query.where(_CALLS.started_us >= after_us, beyond))
        for row in page:
            yield mapped(RecordedCall, row)
        if len(page) < _PAGE_ROWS:
            return
        after_us, after_id = page[-1].started_us, page[-1].id
