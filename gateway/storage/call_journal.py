"""The queries of the journal of tool calls: which calls begin to execute, and their outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import ConstraintViolated
from gateway.storage.interrupted_calls import interrupt_calls
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries, transaction
from gateway.storage.run_writes import Claim, check_claim
from gateway.storage.tables import tool_calls

_OUTCOME_COLUMNS = (
    *("state", "verdict", "rule", "reason", "outcome", "exit_code", "is_error", "result_bytes"),
    *("policy_version", "would_be", "would_be_rule", "approval_id", "result"),
)
_BEGIN_TOOL_CALL = Prepared(insert(tool_calls))
_FINISH_TOOL_CALL = Prepared(
    update(tool_calls)
    .where(tool_calls.c.id == bindparam("finished_id"), tool_calls.c.state == "executing")
    .values({name: bindparam(name) for name in (*_OUTCOME_COLUMNS, "finished_us")})
)


_IS_THERE = Prepared(select(tool_calls.c.id).where(tool_calls.c.id == bindparam("whose")))
# The databases' messages: a trigger of ours, SQLite for any foreign key, PostgreSQL by the key's name.
_GONE = (
    "the thread is being deleted",
    *("FOREIGN KEY constraint failed", "fk_tool_calls_thread_id", "fk_runs_thread_id"),
)


class CallErased(Exception):
    """The row of a finished call was deleted with its tenant: the outcome must not be shown."""


def is_of_deletion(error: ConstraintViolated) -> bool:
    """Return whether a run or a call was refused because its thread is being deleted, or is gone."""
    return any(name in str(error) for name in _GONE)


class CallJournal(Queries):
    """The journal of calls, and their audit entries."""

    async def calls_under_way(self, run_id: str) -> bool:
        """Return whether the journal has open calls of a run."""
        under_way = (tool_calls.c.run_id == run_id) & (tool_calls.c.state == "executing")
        return bool(await self._database.rows(select(tool_calls.c.id).where(under_way).limit(1)))

    async def write_tool_call(
        self, row: dict[str, Any], *, claim: Claim | None = None, audited: Sequence[AuditEntry] = ()
    ) -> None:
        """Journal a tool call that is about to execute, or was blocked.

        With the `claim` of its run it raises LeaseLost if another gateway has that run. An interrupted call that is
        repeated under its id replaces the earlier row. Raises ConstraintViolated if its thread is being deleted: see
        is_of_deletion().
        """
        begun = self._begun(row)

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
                if row.get("read_only"):
                    again = (tool_calls.c.id == row["id"]) & tool_calls.c.read_only
                    connection.execute(delete(tool_calls).where(again))
            _BEGIN_TOOL_CALL.execute(connection, begun)
            self.audit.append(connection, entries=audited)

        await self._database.transact(work, apart=False)

    async def write_unexecuted_call(
        self, row: dict[str, Any], *, claim: Claim | None = None, audited: Sequence[AuditEntry] = ()
    ) -> None:
        """Journal a call that did not execute because its beginning could not be journaled; its request id is free.

        If the beginning was written after all, in a commit without a known result, the row gets this outcome.
        """
        begun = self._begun(row)
        ended = {name: row.get(name) for name in _OUTCOME_COLUMNS}
        ended |= {"finished_us": self.clock(), "request_id": None, "request_digest": None}
        was_begun = (tool_calls.c.id == row["id"]) & (tool_calls.c.state == "executing")

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
            if not connection.execute(update(tool_calls).where(was_begun).values(ended)).rowcount:
                _BEGIN_TOOL_CALL.execute(connection, begun)
            self.audit.append(connection, entries=audited)

        await self._database.transact(work, apart=False)

    async def finish_tool_call(
        self,
        call_id: str,
        changes: dict[str, Any],
        *,
        claim: Claim | None = None,
        audited: Sequence[AuditEntry] = (),
    ) -> None:
        """Journal a tool call's outcome and append it to the audit, unless the call has an outcome.

        Raises CallErased if its row is gone: the audit recorded the call as interrupted before that.
        """
        unknown = changes.keys() - set(_OUTCOME_COLUMNS)
        if unknown:
            raise ValueError(f"not columns of an outcome: {sorted(unknown)}")
        row = dict.fromkeys(_OUTCOME_COLUMNS) | changes | {"finished_us": self.clock(), "finished_id": call_id}

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
            if _FINISH_TOOL_CALL.execute(connection, row).rowcount:
                self.audit.append(connection, entries=audited)
            elif _IS_THERE.execute(connection, {"whose": call_id}).first() is None:
                raise CallErased(call_id)

        await self._database.transact(work, apart=False)

    def _begun(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a call as it is first written; a call that does not execute is finished."""
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
        asked = tool_calls.c.id.in_(list(call_ids)) & (tool_calls.c.run_id == claim.run_id)
        again = asked & tool_calls.c.read_only
        under_way = (tool_calls.c.run_id == claim.run_id) & (tool_calls.c.state == "executing")
        check_claim(connection, claim)
        found = connection.execute(select(tool_calls).where(asked)).all()
        interrupt_calls(connection, self.audit, under_way & ~again, self.clock())
        return {row.id: dict(row._mapping) for row in found}  # noqa: SLF001 - _mapping is public

    async def tool_call(self, tenant: str, call_id: str) -> dict[str, Any] | None:
        """Return a journaled tool call of a tenant."""
        query = select(tool_calls).where(tool_calls.c.id == call_id, tool_calls.c.tenant == tenant)
        found = await self._database.rows(query)
        return dict(zip(tool_calls.c.keys(), found[0], strict=True)) if found else None
