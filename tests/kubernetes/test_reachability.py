"""The engine over the cluster for tests: gateways that do not reach Pods, daemons that lie, and gateways that stall."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from sandbox.client.tls_address import TlsAddress
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.reachability import ASKED_S
from sandbox.engines.kubernetes.records import Record
from sandbox.engines.lifetime import GRACE_S
from sandbox.errors import SandboxUnavailable
from sandbox.sandbox import Sandbox, owner_of
from sandbox.transition import Transition
from tests.conformance.kubernetes_engines import ClusterSite
from tests.integration.sandbox.live_engine import run, text
from tests.kubernetes import kinds
from tests.kubernetes.sandboxes import (
    MakeEngine,
    cluster,
    lose,
    make_engine,
    place,
    resume_while_another_stalls,
    spec,
    until,
)

__all__ = ["cluster", "make_engine", "place"]  # fixtures

_CLOSED_PORT = 1


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.parts._PATIENCE_S", 0.2)


class Clock:
    """The clock of a gateway, ahead of the machine's as a test wishes."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


def cut_off(engine: KubernetesEngine, what: Callable[[str], bool] = lambda _: True) -> None:
    """Have an engine reach no relay of some names, by its own network's fault."""
    real = engine._parts.address

    def address(host: str, name: str) -> TlsAddress:
        at = real(host, name)
        return TlsAddress("127.0.0.1", _CLOSED_PORT, name, at.contexts) if what(name) else at

    engine._parts.address = address  # type: ignore[method-assign]


def record(place: ClusterSite) -> Record:
    (lease,) = place.cluster.objects(kinds.LEASE, place.namespace)
    return Record.of(lease)


async def test_a_gateway_that_reaches_no_pod_ends_none_that_another_one_uses(make_engine: MakeEngine) -> None:
    transitions: list[Transition] = []
    one, cut = make_engine(), make_engine(on_transition=transitions.append)
    sandbox = await one.create(spec())
    running = asyncio.ensure_future(
        run(sandbox.shell, "until [ -e end ]; do sleep 0.05; done; echo done", timeout_s=60)
    )
    cut_off(cut)
    assert await cut.reconcile() == []
    assert not await cut.remove_idle(None)
    assert not await cut.remove_idle(sandbox.spec.tenant, stop=True)
    assert not await cut.stop_idle(sandbox.id)
    await cut.close()
    assert transitions == []
    await sandbox.files.write("/workspace/end", b"")
    assert text(await running) == "done\n"


async def test_a_gateway_that_loses_its_connections_lets_go_of_what_another_one_has(make_engine: MakeEngine) -> None:
    one, cut = make_engine(), make_engine()
    sandbox = await one.create(spec())
    theirs = await cut.create(spec())
    assert theirs.id == sandbox.id
    cut_off(cut)
    cut._parts.attached.by_id[sandbox.id].lose("the network")
    await cut.remove(sandbox.id)
    assert await sandbox.ping()


async def test_a_call_says_that_its_gateway_does_not_reach_the_sandbox_that_another_one_has(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    clock = Clock()
    one, cut = make_engine(), make_engine(clock=clock)
    sandbox = await one.create(spec())
    cut_off(cut)
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=r"this gateway cannot reach it .* port 7600 of the Pods in"):
            await cut.create(spec())
        await until(lambda: not record(place).unreached_s)  # the other one has objected
        clock.ahead_s += ASKED_S + 1
    with pytest.raises(SandboxUnavailable, match="cannot reach it"):
        await cut.find(spec())
    assert await sandbox.ping()


async def test_a_sandbox_that_no_gateway_reaches_is_replaced_by_a_call_two_minutes_later(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    clock, transitions = Clock(), list[Transition]()
    lost, later = make_engine(), make_engine(clock=clock, on_transition=transitions.append)
    sandbox = await lost.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    await lose(lost)
    cut_off(later, lambda name: sandbox.id in name)
    with pytest.raises(SandboxUnavailable, match=f"a call in {ASKED_S:.0f} s gets a new one with the same files"):
        await later.create(spec())
    clock.ahead_s = ASKED_S / 2
    await later.reconcile()
    with pytest.raises(SandboxUnavailable, match=r"a call in \d+ s gets"):
        await later.create(spec())
    clock.ahead_s = ASKED_S + 1
    again = await later.create(spec())
    assert again.id != sandbox.id
    assert text(await run(again.shell, "cat a")) == "kept"
    assert [one.state for one in transitions] == ["removed", "creating", "running"]
    assert not record(place).unreached_s


async def left_unreached(make_engine: MakeEngine, clock: Clock) -> tuple[Sandbox, KubernetesEngine]:
    """Return a sandbox that no gateway reaches, and the only gateway there is."""
    lost, later = make_engine(), make_engine(clock=clock)
    sandbox = await lost.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    await lose(lost)
    cut_off(later, lambda name: sandbox.id in name)
    return sandbox, later


async def test_a_sandbox_that_no_gateway_reaches_counts_as_idle_two_minutes_later(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    clock = Clock()
    sandbox, later = await left_unreached(make_engine, clock)
    assert await later.reconcile() == []
    clock.ahead_s = ASKED_S / 2
    assert await later.reconcile() == []
    await later.remove(sandbox.id)
    assert record(place).sandbox == sandbox.id, "another gateway may yet object"
    clock.ahead_s = ASKED_S + 1
    assert [one.id for one in await later.reconcile()] == [sandbox.id]
    assert not await later.stop_idle(sandbox.id), "it is removed, for nothing can be asked of it"
    assert [line.split()[0] for line in place.left()] == ["workspace", "Lease"]


async def test_a_sandbox_that_no_gateway_reaches_makes_room_at_capacity_two_minutes_later(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    clock = Clock()
    _, later = await left_unreached(make_engine, clock)
    await later.prepare()
    assert not await later.remove_idle(None, stop=True)
    clock.ahead_s = ASKED_S + 1
    assert await later.remove_idle(None, stop=True)
    assert [line.split()[0] for line in place.left()] == ["workspace", "Lease"]


async def test_files_under_a_sandbox_that_no_gateway_reaches_are_replaced_two_minutes_later(
    make_engine: MakeEngine,
) -> None:
    clock = Clock()
    _, later = await left_unreached(make_engine, clock)
    with pytest.raises(SandboxUnavailable, match="this gateway cannot reach it"):
        await later.replace_workspace(spec(), lambda: iter(()))
    clock.ahead_s = ASKED_S + 1
    await later.replace_workspace(spec(), lambda: iter(()))
    assert text(await run((await later.create(spec())).shell, "ls")) == ""


async def test_a_gateway_objects_for_a_sandbox_that_it_has_never_used_and_reaches(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.reachability._SPREAD_S", 0.0)
    clock = Clock()
    _, cut = await left_unreached(make_engine, clock)
    other = make_engine()
    await other.prepare()
    assert not await cut.remove_idle(None)
    await until(lambda: not record(place).unreached_s)
    clock.ahead_s = ASKED_S + 1
    assert not await cut.remove_idle(None)
    assert await other.find(spec()) is not None


async def test_a_sandbox_that_another_gateway_has_stopped_meanwhile_stays_stopped(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    clock = Clock()
    sandbox, later = await left_unreached(make_engine, clock)
    await later.reconcile()
    clock.ahead_s = ASKED_S + 1
    assert [one.id for one in await later.reconcile()] == [sandbox.id]
    other = make_engine()
    assert (await other.create(spec())).id == sandbox.id
    assert await other.stop_idle(sandbox.id)
    assert not await later.stop_idle(sandbox.id), "as its idle timer does"
    await later.remove(sandbox.id)
    assert (record(place).state, record(place).sandbox) == ("stopped", sandbox.id)
    assert (await other.create(spec())).id == sandbox.id


async def test_a_gateway_that_closes_objects_to_nothing_any_more(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.reachability._SPREAD_S", 0.0)
    _, cut = await left_unreached(make_engine, Clock())
    closing = make_engine()
    await closing.prepare()
    await cut.prepare()
    parts = closing._parts
    close = parts.pods.close

    async def asked_meanwhile() -> None:
        assert not await cut.remove_idle(None)
        await until(lambda: any(known.record.unreached_s for known in parts.leases.items.values()))
        await close()

    monkeypatch.setattr(parts.pods, "close", asked_meanwhile)
    await closing.close(keep_sandboxes=True)
    assert not parts.later
    assert record(place).unreached_s
    assert parts.requests.host == "the cluster", "it is not connected any more"


async def test_who_owns_a_sandbox_that_does_not_answer_can_remove_it(make_engine: MakeEngine) -> None:
    lost, later = make_engine(), make_engine()
    await lost.create(spec())
    await lose(lost)
    cut_off(later)
    assert await later.remove_of("tenant-a", "t1") is not None
    assert await later.listed("tenant-a") == []


async def test_what_is_at_a_pods_address_with_another_name_is_removed_by_a_look(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    """A relay that has started anew is unclaimed, and no gateway gets to its sandbox any more."""
    lost, later = make_engine(), make_engine()
    await lost.create(spec())
    await lose(lost)
    await later.prepare()
    real = later._parts.address
    later._parts.address = lambda host, name: real(host, f"{name}0")  # type: ignore[method-assign]
    assert await later.reconcile() == []
    assert [line.split()[0] for line in place.left()] == ["workspace", "Lease"]


# --- daemons that lie ---


async def test_a_daemon_that_lies_about_its_users_does_not_outlive_its_lifetime(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def living() -> list[str]:
        return [one.thread for one in await other.listed("tenant-a") if one.state == "running"]

    clock = Clock()
    one, other = (make_engine(lifetime_s=60, clock=clock) for _ in range(2))
    threads = ["called", "looked at", "removed", "stopped"]
    called, _, removed, stopped = await asyncio.gather(*(one.create(spec(thread)) for thread in threads))
    monkeypatch.setattr("sandbox.client.replies.presence", lambda _: (1, False, False))
    monkeypatch.setattr("sandbox.client.replies.refused", lambda _: "attached")
    clock.ahead_s = 61
    assert await other.reconcile() == []
    assert not await one.end_calls("tenant-a", "called", overdue=True)
    assert sorted(await living()) == threads, "another process may have calls in it"

    clock.ahead_s += GRACE_S
    assert await one.end_calls("tenant-a", "called", overdue=True)
    await one.remove(removed.id)
    assert await one.stop_idle(stopped.id)
    await until(lambda: not called.alive)
    assert sorted(await living()) == ["looked at"]
    assert await other.reconcile() == []
    assert await living() == []


# --- watches that are late ---


async def _resumed_unseen(one: KubernetesEngine, late: KubernetesEngine) -> Sandbox:
    """Return a sandbox that was stopped and resumed, of which another gateway's watch has said nothing."""
    sandbox = await one.create(spec())
    await late.prepare()
    await until(lambda: sandbox.id in late._parts.pods.items)
    watch = late._parts.pods._watching
    assert watch is not None
    watch.cancel()
    assert await one.stop_idle(sandbox.id)
    again = await one.create(spec())
    assert again.id == sandbox.id
    return again


async def test_a_gateway_whose_watch_is_late_shares_the_sandbox_that_was_resumed_meanwhile(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.parts._END_S", 0.5)  # its watch shows no end
    one, late = make_engine(), make_engine()
    resumed = await _resumed_unseen(one, late)
    theirs = await late.create(spec())
    assert theirs.id == resumed.id
    assert await theirs.ping()
    assert await resumed.ping()


async def test_behind_the_gate_the_thread_s_pod_is_removed_whatever_a_late_watch_says_of_it(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.parts._END_S", 0.5)  # its watch shows no end
    one, late = make_engine(), make_engine()
    resumed = await _resumed_unseen(one, late)

    async def held() -> None: ...

    await late._parts.pod_removed(owner_of(spec()), resumed.id, held)
    await until(lambda: not place.cluster.objects(kinds.POD, place.namespace))


# --- gateways that stall ---


@pytest.mark.parametrize("stopped_before", [False, True])
async def test_a_gateway_that_stalls_while_it_ends_a_sandbox_does_not_end_the_one_that_was_resumed_meanwhile(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, *, stopped_before: bool
) -> None:
    await resume_while_another_stalls(make_engine, monkeypatch, stopped_before=stopped_before)
