"""The queries of retention: what is too old is found by a reader, and deleted in small batches by the writer."""

from functools import partial

from sqlalchemy import ColumnElement, Connection, Select, delete, exists, func, or_, select, update

from gateway.storage.approval_store import APPROVED, PENDING
from gateway.storage.call_journal import FORGOTTEN, REMEMBERED_US
from gateway.storage.queries import Queries
from gateway.storage.tables import (
    RUNS_UNDER_WAY,
    approvals,
    audit_heads,
    events,
    grants,
    messages,
    policies,
    policy_changes,
    run_usage,
    runs,
    sandbox_transitions,
    snapshots,
    threads,
    tool_calls,
)

_RUNS_AT_ONCE = 50


class RetentionStore(Queries):
    """Deletes what is older than a time, UTC microseconds since 1970. Each method returns how many rows it deleted.

    Repeating a deletion, even concurrently, has the same result.
    """

    async def prune_events(self, before_us: int) -> int:
        """Delete the events, except the last one, of runs that ended before that time."""
        ended = _ended(before_us)
        earlier = (events.c.run_id == runs.c.id) & (events.c.sequence < runs.c.last_sequence)
        found = select(runs.c.id, runs.c.last_sequence).where(ended, exists().where(earlier)).limit(_RUNS_AT_ONCE)
        removed = 0
        while page := await self._database.rows(found):
            for run in page:
                which = (events.c.run_id == run.id) & (events.c.sequence < run.last_sequence)
                removed += await self._drain(events, which)
        return removed

    async def prune_runs(self, before_us: int) -> int:
        """Delete the runs that ended before that time, with their events. Their messages stay in the threads."""
        ended = _ended(before_us)
        found = select(runs.c.id).where(ended).limit(_RUNS_AT_ONCE)
        removed = 0
        while ids := [row.id for row in await self._database.rows(found)]:
            for run_id in ids:
                await self._drain(events, events.c.run_id == run_id)
                await self._drain(run_usage, run_usage.c.run_id == run_id)
            removed += await self._execute(delete(runs).where(runs.c.id.in_(ids), ended))
        return removed

    async def prune_messages(self, before_us: int) -> int:
        """Delete the messages of threads that no run has added to since, unless a run is under way.

        All messages of a thread at once: a history that begins inside a step is useless. The thread's snapshots then
        count no messages: positions start at 0 again, and later messages are not theirs.
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
        return await self._drain(sandbox_transitions, sandbox_transitions.c.at_us < before_us)

    async def prune_grants(self, before_us: int) -> int:
        """Delete the grants that were revoked before that time, or whose run ended before it."""
        goes_on = exists().where(runs.c.id == grants.c.run_id, ~_ended(before_us))
        of_ended = grants.c.run_id.is_not(None) & (grants.c.created_us < before_us) & ~goes_on
        return await self._drain(grants, or_(grants.c.revoked_us < before_us, of_ended))

    async def prune_approvals(self, before_us: int) -> int:
        """Delete the approvals finished before that time, unless their run is under way or they have a grant.

        Finished means used, denied, cancelled or expired. An approval that has a grant stays without its call, which
        may contain secrets.
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
        return await self._drain(approvals, old & ~goes_on & ~is_granted)

    async def prune_policy_changes(self, before_us: int) -> int:
        """Delete the changes that were replaced before that time, and the texts that are no longer needed.

        A text is needed by a change that stays and by a run under way that is pinned to it. Of each text of a file one
        change stays, so that a file that has this text again does not count as edited.
        """
        later = policy_changes.alias("later")
        changes = policy_changes.c
        follows = (later.c.tenant == changes.tenant) & (later.c.id > changes.id)
        replaced = exists().where(follows, later.c.at_us < before_us)
        from_file = (changes.kind != "file") | exists().where(
            follows, later.c.kind == "file", later.c.digest == changes.digest
        )
        removed = await self._drain(policy_changes, replaced & from_file)
        pinned = exists().where(runs.c.status.in_(RUNS_UNDER_WAY), runs.c.checkpoint.contains(policies.c.digest))
        named = exists().where(changes.digest == policies.c.digest)
        await self._drain(policies, (policies.c.created_us < before_us) & ~named & ~pinned)
        return removed

    async def prune_tool_calls(self, before_us: int) -> int:
        """Delete the calls that ended before, unless their run is under way or they may be repeated (REMEMBERED_US)."""
        calls = tool_calls.c
        goes_on = exists().where(runs.c.id == calls.run_id, runs.c.status.in_(RUNS_UNDER_WAY))
        forgettable = calls.request_id.is_(None) | (calls.started_us <= self.clock() - REMEMBERED_US)
        return await self._drain(tool_calls, (calls.finished_us < before_us) & forgettable & ~goes_on)

    async def forget_results(self, before_us: int) -> int:
        """Delete the request ids and results of finished calls that began before that time."""
        calls = tool_calls.c
        known = calls.request_id.is_not(None) & (calls.started_us < before_us) & calls.finished_us.is_not(None)
        return await self._drain(tool_calls, known, update(tool_calls).values(**FORGOTTEN))

    async def prune_audit(self, before_us: int) -> int:
        """Delete the oldest records of every chain, from before that time; the chain records it."""
        removed = 0
        for row in await self._database.rows(select(audit_heads.c.tenant)):
            work = partial(self.audit.prune, tenant=row.tenant, before_us=before_us)
            while gone := await self._database.transact(work):
                removed += gone
        return removed


def _prune_thread(connection: Connection, *, still: Select[tuple[str]]) -> int:
    removed = connection.execute(delete(messages).where(messages.c.thread_id.in_(still))).rowcount
    if removed:
        connection.execute(update(snapshots).where(snapshots.c.thread_id.in_(still)).values(messages=0))
    return removed


def _ended(before_us: int) -> ColumnElement[bool]:
    return runs.c.status.not_in(RUNS_UNDER_WAY) & (runs.c.finished_us < before_us)
