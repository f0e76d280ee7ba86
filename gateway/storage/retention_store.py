"""The queries of retention: what is too old, found by a reader, and removed in small batches by the writer."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Delete,
    Select,
    Table,
    delete,
    exists,
    func,
    or_,
    select,
    update,
)

from gateway.storage.approval_writes import APPROVED, PENDING
from gateway.storage.audit_store import AuditStore
from gateway.storage.database import Database
from gateway.storage.request_store import REMEMBERED_US
from gateway.storage.tables import (
    RUNS_UNDER_WAY,
    approvals,
    audit_heads,
    events,
    grants,
    messages,
    policies,
    policy_changes,
    runs,
    sandbox_transitions,
    snapshots,
    threads,
    tool_calls,
)
from gateway.support.clock import NowUs, now_us

# What one transaction removes: some milliseconds' worth, for all writers of the database wait meanwhile.
_BATCH_ROWS = 500
_RUNS_AT_ONCE = 50


class RetentionStore:
    """Removes what is older than a time, UTC microseconds since 1970. Each method returns how many rows it took.

    To be told twice, also by two gateways at once, is the same as once.
    """

    def __init__(self, database: Database, clock: NowUs = now_us) -> None:
        self._database = database
        self._clock = clock
        self._audit = AuditStore(database, clock)

    async def prune_events(self, before_us: int) -> int:
        """Remove the events of runs that ended before that, but for each one's last."""
        ended = _ended(before_us)
        earlier = (events.c.run_id == runs.c.id) & (events.c.sequence < runs.c.last_sequence)
        found = select(runs.c.id, runs.c.last_sequence).where(ended, exists().where(earlier)).limit(_RUNS_AT_ONCE)
        removed = 0
        while page := await self._database.rows(found):
            for run_id, last_sequence in (tuple(row) for row in page):
                which = (events.c.run_id == run_id) & (events.c.sequence < last_sequence)
                batch = select(events.c.sequence).where(which).limit(_BATCH_ROWS)
                removed += await self._drained(which & events.c.sequence.in_(batch))
        return removed

    async def prune_runs(self, before_us: int) -> int:
        """Remove the runs that ended before that, with all their events. What they said stays in their threads."""
        found = select(runs.c.id).where(_ended(before_us)).limit(_RUNS_AT_ONCE)
        removed = 0
        while ids := [row.id for row in await self._database.rows(found)]:
            for run_id in ids:
                batch = select(events.c.sequence).where(events.c.run_id == run_id).limit(_BATCH_ROWS)
                await self._drained((events.c.run_id == run_id) & events.c.sequence.in_(batch))
            removed += await self._removed(delete(runs).where(runs.c.id.in_(ids), _ended(before_us)))
        return removed

    async def prune_messages(self, before_us: int) -> int:
        """Remove what was said in the threads that no run added to since, but for those with a run under way.

        All of a thread's at once: a history that began in the midst of a step would be of no use. The thread's
        snapshots then count no messages: positions begin at 0 again, and what is said later is not theirs.
        """
        under_way = exists().where(runs.c.thread_id == threads.c.id, runs.c.status.in_(RUNS_UNDER_WAY))
        unused = (func.coalesce(threads.c.used_us, threads.c.created_us) < before_us) & ~under_way
        found = (
            select(threads.c.id)
            .where(unused, exists().where(messages.c.thread_id == threads.c.id))
            .order_by(threads.c.id)
            .limit(_RUNS_AT_ONCE)
        )
        removed, last = 0, ""
        while ids := [row.id for row in await self._database.rows(found.where(threads.c.id > last))]:
            for thread_id in ids:
                still = select(threads.c.id).where(threads.c.id == thread_id, unused)
                removed += await self._database.transact(partial(_prune_thread, still=still))
            last = ids[-1]
        return removed

    async def prune_transitions(self, before_us: int) -> int:
        """Remove what became of sandboxes before that."""
        old = sandbox_transitions.c.at_us < before_us
        return await self._pruned_by_id(sandbox_transitions, sandbox_transitions.c.id, old)

    async def prune_grants(self, before_us: int) -> int:
        """Remove the grants that were taken back before that, or were for runs that ended before it."""
        goes_on = exists().where(runs.c.id == grants.c.run_id, ~_ended(before_us))
        of_ended = grants.c.run_id.is_not(None) & (grants.c.created_us < before_us) & ~goes_on
        return await self._pruned_by_id(grants, grants.c.id, or_(grants.c.revoked_us < before_us, of_ended))

    async def prune_approvals(self, before_us: int) -> int:
        """Remove the approvals that were over before that, but for those of runs under way and of grants there are.

        Over is one that was used, refused or cancelled, and one that has expired. One that a grant goes back to stays
        without the call that it was about, which may hold secrets.
        """
        goes_on = exists().where(runs.c.id == approvals.c.run_id, runs.c.status.in_(RUNS_UNDER_WAY))
        is_granted = exists().where(grants.c.approval_id == approvals.c.id)
        over = approvals.c.status.not_in((PENDING, APPROVED)) | (approvals.c.expires_us < before_us)
        old = over & (approvals.c.changed_us < before_us)
        emptied = {"arguments": "{}", "arguments_bytes": 2, "asked": "[]", "edited_arguments": None}
        has_call = (
            (approvals.c.arguments != "{}") | (approvals.c.asked != "[]") | approvals.c.edited_arguments.is_not(None)
        )
        await self._database.write(
            (update(approvals).where(old, ~goes_on, is_granted, has_call).values(**emptied), None)
        )
        return await self._pruned_by_id(approvals, approvals.c.id, old & ~goes_on & ~is_granted)

    async def prune_policy_changes(self, before_us: int) -> int:
        """Remove the changes that others took the place of before that; a text that is needed no more goes with them.

        Needed is a text by a change that is left, and by a run under way that is pinned to it. Of each text that a
        file had one change stays: a file that has this text again is not taken for an edited one.
        """
        later = policy_changes.alias("later")
        changes = policy_changes.c
        follows = (later.c.tenant == changes.tenant) & (later.c.id > changes.id)
        replaced = exists().where(follows, later.c.at_us < before_us)
        from_file = (changes.kind != "file") | exists().where(
            follows, later.c.kind == "file", later.c.digest == changes.digest
        )
        removed = await self._pruned_by_id(policy_changes, changes.id, replaced & from_file)
        pinned = exists().where(runs.c.status.in_(RUNS_UNDER_WAY), runs.c.checkpoint.contains(policies.c.digest))
        named = exists().where(changes.digest == policies.c.digest)
        await self._pruned_by_id(policies, policies.c.digest, (policies.c.created_us < before_us) & ~named & ~pinned)
        return removed

    async def _pruned_by_id(self, table: Table, key: Column[Any], which: ColumnElement[bool]) -> int:
        """Remove what is found, in batches, each looked at again in the transaction that removes it."""
        found = select(key).where(which).limit(_BATCH_ROWS)
        removed = 0
        while ids := [row[0] for row in await self._database.rows(found)]:
            gone = await self._removed(delete(table).where(key.in_(ids), which))
            removed += gone
            if not gone:
                break
        return removed

    async def _drained(self, which: ColumnElement[bool]) -> int:
        """Remove a run's events; `which` names a batch of them at a time."""
        removed = 0
        while gone := await self._removed(delete(events).where(which)):
            removed += gone
        return removed

    async def _removed(self, deletion: Delete) -> int:
        return await self._database.transact(lambda connection: connection.execute(deletion).rowcount)

    async def prune_tool_calls(self, before_us: int) -> int:
        """Remove the calls that ended before that, but for those of runs under way and those that are promised.

        Promised is what a request id is answered with, REMEMBERED_US long; forget_results() takes the promise back.
        """
        calls = tool_calls.c
        goes_on = exists().where(runs.c.id == calls.run_id, runs.c.status.in_(RUNS_UNDER_WAY))
        unpromised = calls.request_id.is_(None) | (calls.started_us <= self._clock() - REMEMBERED_US)
        old = (calls.finished_us < before_us) & unpromised
        found = select(calls.id).where(old, ~goes_on).limit(_BATCH_ROWS)
        removed = 0
        while ids := [row.id for row in await self._database.rows(found)]:
            await self._database.write((tool_calls.delete().where(calls.id.in_(ids), old), None))
            removed += len(ids)
        return removed

    async def forget_results(self, before_us: int) -> int:
        """Forget the request ids and results of calls that were made before that and are over."""
        calls = tool_calls.c
        known = calls.request_id.is_not(None) & (calls.started_us < before_us) & calls.finished_us.is_not(None)
        found = select(calls.id).where(known).limit(_BATCH_ROWS)
        nothing = {"request_id": None, "request_digest": None, "result": None}
        forgotten = 0
        while ids := [row.id for row in await self._database.rows(found)]:
            await self._database.write((update(tool_calls).where(calls.id.in_(ids), known).values(**nothing), None))
            forgotten += len(ids)
        return forgotten

    async def prune_audit(self, before_us: int) -> int:
        """Remove the oldest records of every chain, those from before that; the chain says so itself."""
        removed = 0
        for row in await self._database.rows(select(audit_heads.c.tenant)):
            work = partial(self._pruned, tenant=row.tenant, before_us=before_us)
            while gone := await self._database.transact(work):
                removed += gone
        return removed

    def _pruned(self, connection: Connection, *, tenant: str, before_us: int) -> int:
        return self._audit.prune(connection, tenant=tenant, before_us=before_us)


def _prune_thread(connection: Connection, *, still: Select[tuple[str]]) -> int:
    """Remove what was said in a thread; return how many messages that were."""
    removed = connection.execute(delete(messages).where(messages.c.thread_id.in_(still))).rowcount
    if removed:
        connection.execute(update(snapshots).where(snapshots.c.thread_id.in_(still)).values(messages=0))
    return removed


def _ended(before_us: int) -> ColumnElement[bool]:
    return runs.c.status.not_in(RUNS_UNDER_WAY) & (runs.c.finished_us < before_us)
