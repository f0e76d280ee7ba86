"""The queries of the journal of tool calls: what is about to execute, and what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from gateway.storage.audit_store import AuditEntry
from gateway.storage.database import ConstraintViolated
from gateway.storage.interrupted_calls import interrupt_calls
from gateway.storage.prepared import Prepared
from gateway.storage.queries import Queries
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
# As the databases say it: a trigger of ours, SQLite of any key of another table, PostgreSQL by the name of the key.
_GONE = (
    "the thread is being deleted",
    *("FOREIGN KEY constraint failed", "fk_tool_calls_thread_id", "fk_runs_thread_id"),
)


class CallErased(Exception):
    """The row of a call that is over is gone, with its tenant: what came of the call is nobody's to see."""


def is_of_deletion(error: ConstraintViolated) -> bool:
    """Return whether a run or a call was not written because its thread is being deleted, or is by now."""
    return any(name in str(error) for name in _GONE)


class CallJournal(Queries):
    """The journal of calls, with the audit of them."""

    async def calls_under_way(self, run_id: str) -> bool:
        """Return whether any call of a run is under way, as far as is written."""
        under_way = (tool_calls.c.run_id == run_id) & (tool_calls.c.state == "executing")
        return bool(await self._database.rows(select(tool_calls.c.id).where(under_way).limit(1)))

    async def write_tool_call(
        self, row: dict[str, Any], *, claim: Claim | None = None, audited: Sequence[AuditEntry] = ()
    ) -> None:
        """Journal a tool call: that it is about to execute, or that it was blocked.

        With the `claim` of the run that it belongs to it raises LeaseLost when another gateway has that run. A call
        that was interrupted and is made again under its id takes the place of what was written of it. Raises
        ConstraintViolated where its thread is being deleted: is_of_deletion() tells.
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
        """Journal a call that did not execute, for that it was about to could not be written; its request id is free.

        Where that was written all the same, in a commit whose end nobody heard of, the row says now how it ended.
        """
        begun = self._begun(row)
        ended = {name: row.get(name) for name in _OUTCOME_COLUMNS}
        ended |= {"finished_us": self._clock(), "request_id": None, "request_digest": None}
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
        """Journal a tool call's outcome, and tell the audit, unless the call has an outcome already.

        Raises CallErased when its row is gone: the audit had it as interrupted before that.
        """
        unknown = changes.keys() - set(_OUTCOME_COLUMNS)
        if unknown:
            raise ValueError(f"not columns of an outcome: {sorted(unknown)}")
        row = dict.fromkeys(_OUTCOME_COLUMNS) | changes | {"finished_us": self._clock(), "finished_id": call_id}

        def work(connection: Connection) -> None:
            if claim is not None:
                check_claim(connection, claim)
            if _FINISH_TOOL_CALL.execute(connection, row).rowcount:
                self.audit.append(connection, entries=audited)
            elif _IS_THERE.execute(connection, {"whose": call_id}).first() is None:
                raise CallErased(call_id)

        await self._database.transact(work, apart=False)

    def _begun(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a call as it is first written: one that does not execute is over."""
        now_us = self._clock()
        over = {} if row["state"] == "executing" else {"finished_us": now_us}
        return {"started_us": now_us, "gateway": self._gateway, **over, **row}

    async def take_over_calls(self, claim: Claim, call_ids: Collection[str]) -> Mapping[str, dict[str, Any]]:
        """Return what the journal has of calls of a run that was taken, by their ids, as it was before.

        All calls of the run that were under way are journaled as interrupted, but for those of `call_ids` that only
        read: they may be made again.
        """
        asked = tool_calls.c.id.in_(list(call_ids)) & (tool_calls.c.run_id == claim.run_id)
        again = asked & tool_calls.c.read_only
        under_way = (tool_calls.c.run_id == claim.run_id) & (tool_calls.c.state == "executing")

        def work(connection: Connection) -> dict[str, dict[str, Any]]:
            check_claim(connection, claim)
            found = connection.execute(select(tool_calls).where(asked)).all()
            interrupt_calls(connection, self.audit, under_way & ~again, self._clock())
            return {row.id: dict(row._mapping) for row in found}  # noqa: SLF001 - its public name

        return await self._database.transact(work)

    async def tool_call(self, tenant: str, call_id: str) -> dict[str, Any] | None:
        """Return a journaled tool call of a tenant."""
        query = select(tool_calls).where(tool_calls.c.id == call_id, tool_calls.c.tenant == tenant)
        found = await self._database.rows(query)
        return dict(zip(tool_calls.c.keys(), found[0], strict=True)) if found else None
