"""Forks over an engine without Docker, on both databases: what they carry and refuse, and what a crash leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from agent.messages import Message, ToolCall
from gateway.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    QuotaExceeded,
    RequestIdReused,
    ThreadBusy,
    WorkspaceNotSaved,
)
from gateway.policy.document import PolicyDocument
from gateway.snapshots.forks import ForkAt, Forks
from gateway.storage.entities import Thread
from gateway.storage.erasure_store import ErasureStore
from gateway.storage.quota_store import QuotaStore
from gateway.storage.retention_store import RetentionStore
from gateway.storage.run_writes import KeptStep
from gateway.storage.snapshot_store import RUN, STEP, ForkStore
from gateway.storage.tables import audit_records, messages, threads, tool_calls, workspace_requests
from gateway.support.clock import now_us
from gateway.tenancy.quotas import Quotas
from tests.unit.gateway.snapshots.test_snapshots import ACME, Harness, harness, tenant
from tests.unit.gateway.stored_steps import keep_step

__all__ = ["harness"]
CALL = ToolCall(id="c", name="execute", arguments={})
ASKS = Message(role="assistant", tool_calls=(CALL,))
DONE = Message(role="tool", tool_call_id="c", content="done")


def said(role: str, content: str) -> Message:
    return Message.model_validate({"role": role, "content": content})


def forks_of(harness: Harness, store: type[ForkStore] = ForkStore) -> Forks:
    database = harness.database
    quotas = Quotas(QuotaStore(database, "gw"))
    return Forks(harness.engine, harness.snapshots, store(database), quotas=quotas)


async def add(harness: Harness, thread: Thread, run_id: str, said: Sequence[Message], **metadata: object) -> KeptStep:
    """Have a run say something in a thread, and set its metadata."""
    position = await harness.threads_listed.message_count(thread.id)
    changed = {key: json.dumps(value) for key, value in metadata.items()}
    await keep_step(harness.threads, thread, run_id, position, said, changed=changed)
    return KeptStep(thread, position, tuple(said), changed)


async def two_steps(harness: Harness) -> Thread:
    """Make a thread whose run took two steps that were kept, and a last one that only answered."""
    thread = await harness.threads.thread("acme", "a")
    await add(harness, thread, "r1", [said("user", "task")])
    for number in (1, 2):
        await harness.write(ACME, "a", **{f"f{number}": b"%d" % number})
        step = await add(harness, thread, "r1", [ASKS, DONE], todo=number)
        await harness.snapshots.keep_step(ACME, "r1", number, step, STEP)
    await add(harness, thread, "r1", [said("assistant", "answer")], todo="all done")
    return thread


async def of(harness: Harness, name: str) -> tuple[list[str], dict[str, str] | None, dict[str, bytes]]:
    """Return who spoke in a thread, its metadata and its files."""
    row = await harness.threads_listed.get("acme", name)
    assert row is not None
    page, _ = await harness.threads_listed.messages(row.id, after=-1, limit=100)
    metadata = await harness.threads_listed.metadata(row.id, limit_bytes=10_000)
    return [json.loads(one.message)["role"] for one in page], metadata, await harness.files(ACME, name)


async def test_a_fork_at_a_step_has_the_messages_metadata_and_files_of_that_step(harness: Harness) -> None:
    await two_steps(harness)
    forks = forks_of(harness)
    made = await forks.fork(ACME, "a", "b", ForkAt(run_id="r1", step=1))
    assert (made.thread, made.of_thread, made.run_id, made.step, made.messages) == ("b", "a", "r1", 1, 3)
    assert await of(harness, "b") == (["user", "assistant", "tool"], {"todo": "1"}, {"f1": b"1"})
    # Each goes its own way from there.
    await harness.write(ACME, "b", f1=b"other")
    assert (await harness.files(ACME, "a")) == {"f1": b"1", "f2": b"2"}
    reported = await harness.database.rows(select(audit_records).where(audit_records.c.kind == "thread_forked"))
    assert [(row.thread, json.loads(row.details)["of_thread"]) for row in reported] == [("b", "a")]


async def test_a_runs_end_and_the_step_that_only_answered_have_the_files_of_the_last_step_with_tools(
    harness: Harness,
) -> None:
    await two_steps(harness)
    forks = forks_of(harness)
    for name, at in (("end", ForkAt(run_id="r1")), ("last", ForkAt(run_id="r1", step=3))):
        made = await forks.fork(ACME, "a", name, at)
        assert (made.step, made.messages) == (3, 6)
        assert (await of(harness, name))[::2] == (
            ["user", "assistant", "tool", "assistant", "tool", "assistant"],
            {"f1": b"1", "f2": b"2"},
        )


async def test_a_step_whose_files_are_not_kept_is_refused_with_the_nearest_ones(harness: Harness) -> None:
    thread = await two_steps(harness)
    forks = forks_of(harness)
    await add(harness, thread, "r1", [ASKS, DONE])
    for at in (ForkAt(run_id="r1", step=4), ForkAt(run_id="r1"), ForkAt(run_id="r1", step=9)):
        with pytest.raises(WorkspaceNotSaved, match="1, 2") as refused:
            await forks.fork(ACME, "a", "b", at)
        assert refused.value.details["nearest"] == "1, 2"
    await add(harness, thread, "r2", [said("user", "more"), ASKS, DONE])
    with pytest.raises(WorkspaceNotSaved, match="snapshots: step"):
        await forks.fork(ACME, "a", "b", ForkAt(run_id="r2", step=1))
    with pytest.raises(NotFound):
        await forks.fork(ACME, "a", "b", ForkAt(run_id="never", step=1))
    with pytest.raises(InvalidArgument):
        await forks.fork(ACME, "a", "b", ForkAt(step=1))
    assert await harness.threads_listed.get("acme", "b") is None


async def test_a_fork_of_a_snapshot_has_nothing_said_after_retention_removed_its_messages(harness: Harness) -> None:
    thread = await two_steps(harness)
    forks = forks_of(harness)
    then = await harness.snapshots.create(ACME, "a", comment="")
    assert await RetentionStore(harness.database).prune_messages(now_us() + 1) == 6
    assert (await harness.snapshots.get(ACME, then.id)).messages == 0
    await add(harness, thread, "r2", [said("user", "said later")])
    assert (await forks.fork(ACME, "", "b", ForkAt(snapshot_id=then.id))).messages == 0
    assert await of(harness, "b") == ([], {"todo": '"all done"'}, {"f1": b"1", "f2": b"2"})
    with pytest.raises(NotFound):
        await forks.fork(ACME, "a", "c", ForkAt(run_id="r1", step=1))


async def test_a_fork_has_nothing_said_later_though_retention_comes_while_its_files_are_written(
    harness: Harness,
) -> None:
    thread = await two_steps(harness)
    then = await harness.snapshots.create(ACME, "a", comment="")

    class PrunedMeanwhile(ForkStore):
        async def end(self, *args: Any, **more: Any) -> int:
            await RetentionStore(harness.database).prune_messages(now_us() + 1)
            await add(harness, thread, "r2", [said("user", "said later")])
            return await super().end(*args, **more)

    await forks_of(harness, PrunedMeanwhile).fork(ACME, "", "b", ForkAt(snapshot_id=then.id))
    assert (await of(harness, "b"))[0] == []


async def test_a_fork_without_a_moment_is_of_now_and_one_of_a_snapshot_is_of_then(harness: Harness) -> None:
    thread = await two_steps(harness)
    forks = forks_of(harness)
    then = await harness.snapshots.create(ACME, "a", comment="")
    await harness.write(ACME, "a", f3=b"3")
    await add(harness, thread, "", [said("user", "note")], todo="later")
    assert (await forks.fork(ACME, "a", "now", ForkAt())).messages == 7
    assert (await of(harness, "now"))[1:] == ({"todo": '"later"'}, {"f1": b"1", "f2": b"2", "f3": b"3"})
    assert (await forks.fork(ACME, "", "then", ForkAt(snapshot_id=then.id))).messages == 6
    assert (await of(harness, "then"))[1:] == ({"todo": '"all done"'}, {"f1": b"1", "f2": b"2"})


async def test_a_thread_with_a_call_under_way_is_not_forked_as_it_is_now(harness: Harness) -> None:
    thread = await two_steps(harness)
    words = dict.fromkeys(("name", "arguments", "arguments_digest", "policy_version"), "x")
    row = {**words, "id": "call_1", "tenant": "acme", "thread_id": thread.id, "state": "executing", "started_us": 1}
    await harness.database.write((insert(tool_calls), row))
    with pytest.raises(ThreadBusy):
        await forks_of(harness).fork(ACME, "a", "b", ForkAt())
    assert (await forks_of(harness).fork(ACME, "a", "b", ForkAt(run_id="r1", step=2))).step == 2


async def test_the_same_request_makes_one_thread_and_its_id_is_good_for_no_other(harness: Harness) -> None:
    await two_steps(harness)
    forks = forks_of(harness)
    made = await forks.fork(ACME, "a", "b", ForkAt(), request_id="once")
    assert await forks.fork(ACME, "a", "b", ForkAt(), request_id="once") == made
    with pytest.raises(RequestIdReused):
        await forks.fork(ACME, "a", "c", ForkAt(), request_id="once")
    with pytest.raises(Conflict):
        await forks.fork(ACME, "a", "b", ForkAt())
    with pytest.raises(QuotaExceeded, match="threads"):
        await forks.fork(tenant(quotas={"threads": 2}), "a", "c", ForkAt())
    with pytest.raises(NotFound):
        await forks.fork(tenant("other"), "a", "c", ForkAt())


async def test_a_fork_that_is_refused_keeps_no_snapshot(harness: Harness) -> None:
    await two_steps(harness)
    forks = forks_of(harness)
    made = await forks.fork(ACME, "a", "b", ForkAt(), request_id="once")
    kept = sorted(harness.kept())
    with pytest.raises(Conflict):
        await forks.fork(ACME, "a", "b", ForkAt())
    with pytest.raises(QuotaExceeded, match="threads"):
        await forks.fork(tenant(quotas={"threads": 2}), "a", "c", ForkAt())
    async with harness.snapshots.of("acme").forking():
        await ForkStore(harness.database).begin(Thread("thr_1", "acme", "c"), "frk_1", 10, None)
        with pytest.raises(ThreadBusy, match="being created as a fork"):
            await forks.fork(ACME, "a", "c", ForkAt())
    assert sorted(harness.kept()) == kept
    page, _ = await harness.snapshots.page(ACME, thread="a", size=0, token="")
    assert [one.id for one in page if one.kind == "fork"] == [made.snapshot_id]


class Killed(BaseException):
    """What ends a process at once."""


class DyingStore(ForkStore):
    """Loses the process, as it were, before the thread is shown."""

    async def end(self, *_: object, **__: object) -> int:
        raise Killed


async def test_a_fork_whose_process_dies_half_way_is_invisible_and_removed(harness: Harness) -> None:
    await two_steps(harness)
    dying = forks_of(harness, DyingStore)
    dying._undone = _nothing  # type: ignore[method-assign, assignment]
    with pytest.raises(Killed):
        await dying.fork(ACME, "a", "b", ForkAt(run_id="r1", step=1), request_id="once")
    assert await harness.threads_listed.get("acme", "b") is None
    assert [row.name for row in await harness.threads_listed.page("acme", prefix="", before=None, limit=9)] == ["a"]
    with pytest.raises(ThreadBusy):
        await harness.snapshots.restore(ACME, (await harness.snapshots.create(ACME, "a", comment="")).id, "b")
    assert await harness.files(ACME, "b") == {"f1": b"1"}
    await forks_of(harness).remove_half_made()
    assert await harness.files(ACME, "b") == {}
    assert len(await harness.database.rows(select(threads))) == 1
    assert await harness.database.rows(select(workspace_requests)) == []
    made = await forks_of(harness).fork(ACME, "a", "b", ForkAt(run_id="r1", step=1), request_id="once")
    assert (await of(harness, "b"))[2] == {"f1": b"1"}
    assert made.messages == 3


async def test_a_fork_that_is_under_way_is_not_taken_for_one_that_died(harness: Harness) -> None:
    await two_steps(harness)
    forks = forks_of(harness)
    await ForkStore(harness.database).begin(Thread("thr_1", "acme", "b"), "frk_1", 10, None)
    async with harness.snapshots.of("acme").forking():
        await forks.remove_half_made("acme")
        assert len(await ForkStore(harness.database).half_made()) == 1
    await forks.remove_half_made("acme")
    assert await ForkStore(harness.database).half_made() == []


async def test_a_thread_whose_restore_was_cut_short_is_not_forked_as_it_is_now_nor_is_one_half_made_changed(
    harness: Harness,
) -> None:
    thread = await two_steps(harness)
    await harness.database.write((update(threads).values(deletion="rst_lost"), None))
    with pytest.raises(ThreadBusy, match="repeat a restore"):
        await forks_of(harness).fork(ACME, "a", "b", ForkAt())
    assert (await forks_of(harness).fork(ACME, "a", "b", ForkAt(run_id="r1", step=1))).messages == 3
    await harness.database.write((update(threads).where(threads.c.id == thread.id).values(deletion="frk_other"), None))
    with pytest.raises(ThreadBusy, match="created as a fork"):
        await harness.threads_listed.change_metadata(thread, {"k": "1"}, (), keys_limit=9, limit_bytes=99)


async def test_what_was_kept_for_forks_goes_with_the_thread_and_what_was_asked_for_stays_without_its_metadata(
    harness: Harness,
) -> None:
    thread = await two_steps(harness)
    asked = await harness.snapshots.create(ACME, "a", comment="")
    await harness.snapshots.forget_thread("acme", "a")
    await ErasureStore(harness.database).remove_thread("acme", "a", "me")
    for name in ("", "a"):
        page, _ = await harness.snapshots.page(ACME, thread=name, size=0, token="")
        assert [one.id for one in page] == [asked.id]
    assert harness.snapshots.of("acme").of(asked.id).read_metadata() is None
    assert await harness.database.rows(select(messages).where(messages.c.thread_id == thread.id)) == []
    with pytest.raises(NotFound, match="restore it"):
        await forks_of(harness).fork(ACME, "a", "b", ForkAt(snapshot_id=asked.id))
    await harness.snapshots.restore(ACME, asked.id, "b")
    assert await harness.files(ACME, "b") == {"f1": b"1", "f2": b"2"}


def test_a_run_of_as_many_steps_as_runs_have_by_default_can_be_forked_at_each() -> None:
    policy = PolicyDocument(version=1)
    assert policy.sandbox.snapshots_kept > policy.limits.steps


async def test_automatic_snapshots_make_room_for_new_ones_and_never_the_other_way_round(harness: Harness) -> None:
    two = tenant(sandbox={"snapshots": "step", "snapshots_kept": 2}, quotas={"snapshots": 3})
    thread = await harness.threads.thread("acme", "a")

    async def keep(number: int) -> None:
        await harness.write(two, "a", f=b"%d" % number)
        await harness.snapshots.keep_step(two, "r1", number, KeptStep(thread, 0), STEP)

    async def kept() -> list[tuple[str, int]]:
        page, _ = await harness.snapshots.page(two, thread="", size=0, token="")
        return sorted((one.kind, one.step) for one in page)

    for number in (1, 2, 3):
        await keep(number)
    assert await kept() == [("step", 2), ("step", 3)]
    for _ in range(2):
        await harness.snapshots.create(two, "a", comment="")
    assert await kept() == [("asked", 0), ("asked", 0), ("step", 3)]
    await harness.snapshots.create(two, "a", comment="")
    with pytest.raises(QuotaExceeded):
        await keep(4)
    assert await kept() == [("asked", 0)] * 3
    sizes = sum(path.stat().st_size for path in harness.kept())
    assert sizes < 10_000


async def test_a_step_that_is_kept_again_takes_the_place_of_what_an_earlier_gateway_kept_from_there_on(
    harness: Harness,
) -> None:
    thread = await harness.threads.thread("acme", "a")
    for number in (1, 2, 3, 2):
        await harness.write(ACME, "a", f=b"%d" % number)
        await harness.snapshots.keep_step(ACME, "r1", number, KeptStep(thread, number), STEP)
    await harness.snapshots.keep_step(ACME, "r2", 1, KeptStep(thread, 9), RUN)
    page, _ = await harness.snapshots.page(ACME, thread="", size=0, token="")
    assert sorted((one.run_id, one.step) for one in page) == [("r1", 1), ("r1", 2), ("r2", 1)]
    assert sum(path.suffix == ".manifest" for path in harness.kept()) == 3


async def _nothing(*_: object) -> None:
    """What a process does that is dead."""
