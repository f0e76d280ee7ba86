"""The engine over the cluster for tests: what becomes of sandboxes when Pods, nodes, the API or a gateway fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandbox.engines.kubernetes.allowance import Allowance
from sandbox.engines.kubernetes.boot import Inspection
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import GATEWAY_VERBS, NAMED, VERBS
from sandbox.engines.pooled_sandbox import PoolKind
from sandbox.engines.workspace_archive import WorkspaceEntry
from sandbox.errors import (
    EngineFull,
    EngineUnavailable,
    ImageMissing,
    PostureTooWeak,
    RuntimeMissing,
    SandboxBusy,
    SandboxError,
    SandboxUnavailable,
)
from sandbox.transition import Transition
from tests.conformance.kubernetes_engines import ACCOUNT, ClusterSite
from tests.integration.sandbox.live_engine import run, text
from tests.kubernetes import kinds
from tests.kubernetes.faults import Fault
from tests.kubernetes.sandboxes import (
    MakeEngine,
    cluster,
    deleted,
    engine,
    evicted,
    failure,
    kill_while_it_creates,
    lose,
    make_engine,
    out_of_memory,
    place,
    quota,
    restricted,
    spec,
    until,
)
from tests.kubernetes.schemas import check
from tests.kubernetes.statuses import gone, internal, too_many_requests

__all__ = ["cluster", "engine", "make_engine", "place"]  # fixtures


# --- what the cluster says of a sandbox that runs ---


@pytest.mark.parametrize(
    "befalls, reason",
    [(out_of_memory, "out of memory"), (evicted, "evicted it"), (deleted, "Pod")],
    ids=["oom", "evicted", "deleted"],
)
async def test_a_sandbox_whose_pod_ends_is_lost_with_the_reason_and_the_next_one_has_its_files(
    engine: KubernetesEngine, place: ClusterSite, befalls: Any, reason: str
) -> None:
    sandbox = await engine.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    running = asyncio.ensure_future(run(sandbox.shell, "sleep 600", timeout_s=900))
    await befalls(place, sandbox)
    async with asyncio.timeout(5):
        assert (await running).outcome == "daemon_lost"
        assert reason in await failure(engine)
    assert not sandbox.alive
    again = await engine.create(spec())
    assert again.id != sandbox.id
    assert text(await run(again.shell, "cat a")) == "kept"


async def test_a_sandbox_on_a_node_that_is_lost_is_lost_though_its_connections_say_nothing(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    transitions: list[Transition] = []
    engine = make_engine(on_transition=transitions.append)
    place.cluster.call(place.cluster.nodes.add, place.namespace, None, {"only": place.namespace})
    place.cluster.call(place.cluster.nodes.cordon, "node-1")
    try:
        sandbox = await engine.create(spec())
        running = asyncio.ensure_future(run(sandbox.shell, "sleep 600", timeout_s=900))
        place.cluster.call(place.cluster.nodes.lose, place.namespace)
        async with asyncio.timeout(5):
            assert (await running).outcome == "daemon_lost"
            assert await failure(engine) == "its node was lost"
        assert not sandbox.alive
        async with asyncio.timeout(10):  # its end will not be seen, so nothing waits for it
            await engine.remove(sandbox.id)
        assert (transitions[-1].state, "lost" in transitions[-1].reason) == ("removed", True)
    finally:
        place.cluster.call(_uncordon, place)


def _uncordon(place: ClusterSite) -> None:
    from tests.kubernetes.store import copied

    node = copied(place.cluster.store.find(kinds.NODE, "", "node-1") or {})
    node["spec"].pop("unschedulable", None)
    place.cluster.store.put(kinds.NODE, node)
    place.cluster.store.remove(kinds.NODE, "", place.namespace)
    for pod in place.cluster.store.all(kinds.POD, place.namespace):
        place.cluster.store.remove(kinds.POD, place.namespace, pod["metadata"]["name"])


# --- what the cluster refuses: typed, with what to do, and nothing stays ---


def _no_pods(place: ClusterSite) -> None:
    rules = [
        {"apiGroups": [one.group], "resources": [one.plural], "verbs": sorted(verbs - {"create"})}
        for one, verbs in VERBS.items()
        if one.plural == "pods"
    ]
    name = f"{place.keys_namespace}-{ACCOUNT}"
    role = next(one for one in place.cluster.objects(kinds.ROLE, place.namespace) if one["metadata"]["name"] == name)
    kept = [rule for rule in role["rules"] if rule["resources"] != ["pods"]]
    place.cluster.apply({**role, "rules": [*kept, *rules]})


@pytest.mark.parametrize(
    "disturb, asked, error, message",
    [
        (lambda _: None, {"image": "no-such-image"}, ImageMissing, "'no-such-image' cannot be pulled"),
        (lambda _: None, {"runtime": "no-such-runtime"}, RuntimeMissing, '"no-such-runtime" not found'),
        (quota, {}, EngineFull, "raise its ResourceQuota"),
        (restricted, {}, SandboxUnavailable, "enforce=baseline"),
        (_no_pods, {}, SandboxUnavailable, "grant create on pods"),
    ],
    ids=["image", "runtime", "quota", "pod-security", "verb"],
)
async def test_what_the_cluster_refuses_says_what_to_do_and_leaves_nothing(
    make_engine: MakeEngine, place: ClusterSite, disturb: Any, asked: Any, error: type[SandboxError], message: str
) -> None:
    engine = make_engine()
    await engine.prepare()
    disturb(place)
    with pytest.raises(error, match=message):
        await engine.create(spec(**asked))
    assert place.left() == []


async def test_a_pod_that_no_node_takes_is_given_up_with_the_scheduler_s_reason(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    huge = replace(spec(), limits=replace(spec().limits, memory_bytes=2**44))
    with pytest.raises(EngineFull, match=r"no node of the cluster takes the sandbox: .*Insufficient memory"):
        await engine.create(huge)
    assert place.left() == []


async def test_a_cluster_without_a_class_for_volumes_is_refused_before_anything_is_made(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    place.cluster.call(place.cluster.store.remove, kinds.STORAGE_CLASS, "", "standard")
    try:
        with pytest.raises(SandboxUnavailable, match=r"no default StorageClass.*name one in .*storage_class"):
            await engine.create(spec())
        assert place.left() == []
    finally:
        from tests.kubernetes.cluster import storage_class

        place.cluster.apply(storage_class("standard"))


async def test_a_namespace_that_is_being_deleted_or_is_not_there_is_named(place: ClusterSite) -> None:
    if place.cluster.real:
        pytest.skip("not on a real cluster: it would be gone before it is looked at")
    engine = place.engine()
    await engine.prepare()

    def end() -> None:
        from tests.kubernetes.store import copied

        namespace = copied(place.cluster.store.find(kinds.NAMESPACE, "", place.namespace) or {})
        namespace["status"]["phase"] = "Terminating"
        place.cluster.store.put(kinds.NAMESPACE, namespace)

    place.cluster.call(end)
    with pytest.raises(SandboxUnavailable, match="is being deleted"):
        await engine.create(spec())
    await engine.close()


async def test_a_token_that_is_refused_says_so(engine: KubernetesEngine, place: ClusterSite) -> None:
    await engine.prepare()
    place.cluster.call(place.cluster.access.expire, place.token)
    with pytest.raises(EngineUnavailable, match="the token has expired"):
        await engine.create(spec())
    place.cluster.call(place.cluster.access._users.__setitem__, place.token, _account(place))


def _account(place: ClusterSite) -> Any:
    from tests.kubernetes.access import service_account

    return service_account(place.keys_namespace, ACCOUNT)


async def test_a_sandbox_without_walls_is_refused_and_removed(make_engine: MakeEngine, place: ClusterSite) -> None:
    """A Pod of this cluster is a process: what a gateway asks of a sandbox it does not have."""

    class OfAnyRelease(Inspection):
        async def introduced(self, channel: Any) -> Any:
            return (await channel.hello(timeout_s=5.0)).posture

    engine = make_engine(inspection=OfAnyRelease())
    with pytest.raises(PostureTooWeak, match="weaker than its spec") as refused:
        await engine.create(spec())
    assert "can set extended attributes" in str(refused.value)
    assert place.left() == []
    other = make_engine(inspection=Inspection())
    with pytest.raises(SandboxUnavailable, match="different releases"):
        await other.create(spec())
    assert place.left() == []


# --- the API fails ---


async def test_requests_are_repeated_while_the_api_is_overloaded_or_breaks_off(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    await engine.prepare()
    for resource in ("leases", "persistentvolumeclaims", "pods"):
        place.cluster.disturb(
            Fault("create", resource, error=too_many_requests(0)),
            Fault("create", resource, reset=True, after=True),
        )
    place.cluster.disturb(Fault("update", "leases", error=internal("etcd"), after=True))
    sandbox = await engine.create(spec())
    assert await sandbox.ping()
    assert [line.split()[0] for line in place.left()] == ["Pod", "workspace", "Lease"], "one of each"
    place.cluster.disturb(Fault("delete", "pods", reset=True, after=True))
    await engine.remove(sandbox.id)
    assert not engine.has(spec())


async def test_watches_that_are_dropped_or_too_old_miss_nothing(engine: KubernetesEngine, place: ClusterSite) -> None:
    first = await engine.create(spec("first"))
    for resource in ("pods", "leases"):
        place.cluster.disturb(
            Fault("watch", resource, drop_after_events=1),
            Fault("watch", resource, expire_after_events=1),
            Fault("list", resource, error=internal("etcd")),
            Fault("watch", resource, error=gone()),
        )
    place.cluster.compact()
    # Watches that run are not disturbed: their end begins the disturbances.
    place.cluster.call(lambda: [transport.abort() for transport in [*place.cluster.api.transports.values()]])
    second = await engine.create(spec("second"))
    other = place.engine()
    await other.remove_of("tenant-a", "first")
    await other.close(keep_sandboxes=True)
    await until(lambda: not first.alive and not engine.has(spec("first")))
    assert await second.ping()
    assert [one.thread for one in await engine.listed("tenant-a")] == ["second"]


# --- several processes ---


async def test_another_process_finds_a_sandbox_and_neither_stops_what_the_other_uses(make_engine: MakeEngine) -> None:
    one, other = make_engine(), make_engine()
    mine = await one.create(spec())
    theirs = await other.create(spec())
    assert mine.id == theirs.id
    await mine.files.write("/workspace/a", b"1")
    assert (await theirs.files.stat("/workspace/a")).size_bytes == 1
    assert theirs.borrow()
    await until(lambda: mine.busy)
    with pytest.raises(SandboxBusy):
        await one.stop("tenant-a", "t1")
    assert not await one.remove_idle(None)
    await one.remove(mine.id)
    assert await theirs.ping(), "let go of, for another process has it"
    again = await one.find(spec())
    assert again is not None
    assert not await one.stop_idle(again.id)
    theirs.give_back()
    assert await other.stop_idle(theirs.id)
    assert one.stopped(spec()) == mine.id or await one.stop("tenant-a", "t1") is not None
    resumed = await one.create(spec())
    assert (resumed.id, (await resumed.files.stat("/workspace/a")).size_bytes) == (mine.id, 1)


async def test_processes_that_create_at_the_same_time_have_one_sandbox(make_engine: MakeEngine) -> None:
    engines = [make_engine() for _ in range(3)]
    made = await asyncio.gather(*(one.create(spec()) for one in engines))
    assert len({sandbox.id for sandbox in made}) == 1
    assert len(await engines[0].owned()) == 1


async def test_the_calls_of_a_process_that_is_lost_are_ended_by_another(make_engine: MakeEngine) -> None:
    lost, other = make_engine(), make_engine()
    sandbox = await lost.create(spec())
    assert sandbox.borrow()
    assert await other.end_calls("tenant-a", "t1")
    assert not await other.end_calls("tenant-a", "t1")
    await until(lambda: not sandbox.alive)


async def test_files_whose_record_was_lost_are_found_and_removed_by_their_labels(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    async def lose_record() -> None:
        (lease,) = place.cluster.objects(kinds.LEASE, place.namespace)
        name = lease["metadata"]["name"]
        place.cluster.call(place.cluster.store.remove, kinds.LEASE, place.namespace, name)
        await until(lambda: engine.owners() == [])

    sandbox = await engine.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    await engine.remove(sandbox.id)
    await lose_record()
    again = await engine.create(spec())
    assert text(await run(again.shell, "cat a")) == "kept"
    await engine.remove(again.id)
    await lose_record()
    assert await engine.remove_workspace("tenant-a", "t1")
    assert not await engine.remove_workspace("tenant-a", "t1")
    assert place.left() == []


async def test_files_are_saved_and_replaced_while_no_sandbox_runs_and_no_carrier_stays(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed while it replaces files leaves the old ones, or the new ones, and nothing else."""
    monkeypatch.setattr("sandbox.engines.kubernetes.gates.LEASE_S", 1)
    killed, later = make_engine(), make_engine()
    sandbox = await killed.create(spec())
    await sandbox.files.write("/workspace/a", b"old")
    assert await killed.stop_idle(sandbox.id)

    def give() -> Iterator[tuple[WorkspaceEntry, Iterator[bytes]]]:
        yield WorkspaceEntry("", "directory", 0o755), iter(())
        yield WorkspaceEntry("a", "file", size_bytes=3), iter((b"new",))
        asyncio.run_coroutine_threadsafe(lose(killed), loop).result(30)
        raise SandboxUnavailable("killed")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(killed._parts.requests, "_ask", _after(killed._parts.requests._ask, lambda: killed._closed))
    with pytest.raises(SandboxError):
        await killed.replace_workspace(spec(), give)
    await later.reconcile()
    await until(lambda: [line.split()[0] for line in place.left()] == ["workspace", "Lease"])
    found = await later.save_workspace(spec(), lambda contents: [b"".join(data) for _, data in contents])
    assert found == [b"", b"old"]
    assert [line.split()[0] for line in place.left()] == ["workspace", "Lease"], "no carrier stays"


def _after(real: Any, dead: Callable[[], bool]) -> Any:
    async def ask(*arguments: Any, **named: Any) -> Any:
        if dead():
            raise EngineUnavailable("this process was killed")
        return await real(*arguments, **named)

    return ask


# --- nothing half-made stays ---

_STEPS = [
    ("create", "leases", True),
    pytest.param("update", "leases", False, marks=pytest.mark.full),
    pytest.param("update", "leases", True, marks=pytest.mark.full),
    ("create", "persistentvolumeclaims", True),
    pytest.param("create", "pods", False, marks=pytest.mark.full),
    ("create", "pods", True),
]


@pytest.mark.parametrize("verb, resource, after", _STEPS)
async def test_a_process_that_is_killed_at_any_step_of_a_creation_leaves_nothing_that_stays(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch, verb: str, resource: str, after: bool
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.gates.LEASE_S", 1)
    killed, later = make_engine(), make_engine()
    await later.prepare()
    await kill_while_it_creates(killed, monkeypatch, verb, resource, after=after)
    assert await later.reconcile() == []
    await until(lambda: place.left() == [])


async def test_all_that_is_asked_of_the_cluster_is_granted_and_nothing_else_is(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    async def allowances(_: str | None) -> Allowance:
        return Allowance(2, 2, spec().limits)

    engine = make_engine(allowances=allowances)
    sandbox = await engine.create(spec())
    assert await engine.stop_idle(sandbox.id)
    await engine.save_workspace(spec(), lambda contents: [entry.path for entry, _ in contents])
    await engine.remove_of("tenant-a", "t1")
    await engine.remove_all_of("tenant-a")
    pooled = await engine.pool.make_pooled(PoolKind.of(spec()))
    assert await engine.pool.claim(pooled, spec()) is not None
    await engine.pool.discard(await engine.pool.make_pooled(PoolKind.of(spec())))
    granted = {
        (one.group, one.plural, verb) for verbs in (VERBS, GATEWAY_VERBS) for one in verbs for verb in verbs[one]
    }
    used = place.cluster.used(place.keys_namespace, ACCOUNT)
    assert used <= granted
    # What is shared is updated only when keys, settings or policies have changed; Pods are read where claims conflict.
    assert granted - used <= {("", "pods", "get"), *((one.group, one.plural, "update") for one in NAMED)}


async def test_no_text_of_a_tenant_and_no_secret_is_in_a_pod(engine: KubernetesEngine, place: ClusterSite) -> None:
    asked = replace(spec("a thread of theirs", "a tenant"), env={"TOKEN": "a secret"})
    sandbox = await engine.create(asked)
    (pod,) = place.cluster.objects(kinds.POD, place.namespace)
    check(kinds.POD, pod, "the Pod")
    for words in ("a thread of theirs", "a tenant", "a secret"):
        assert words not in str(pod)
    assert text(await run(sandbox.shell, 'echo "$TOKEN"')) == "a secret\n"
    await engine.remove_all_of("a tenant")
