"""A pooled Pod belongs to no thread, then to one, whatever dies in between and whatever a cache says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.fair_creation import FairCreation
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_pool import KubernetesPooled
from sandbox.engines.kubernetes.records import Record
from sandbox.engines.pooled_sandbox import PooledRefused, PoolKind
from sandbox.engines.sandbox_pool import SandboxPool, _Ready
from sandbox.errors import DaemonLost
from sandbox.protocols import ProcessSpec
from sandbox.sandbox import owner_of
from tests.conformance.kubernetes_engines import ClusterSite
from tests.integration.sandbox.live_engine import run, text
from tests.kubernetes import kinds
from tests.kubernetes.claiming import STEPS, WHOLE
from tests.kubernetes.faults import Fault
from tests.kubernetes.sandboxes import MakeEngine, cluster, engine, lose, make_engine, place, spec
from tests.kubernetes.schemas import check
from tests.kubernetes.statuses import gone, internal
from tests.kubernetes.store import copied

__all__ = ["cluster", "engine", "make_engine", "place"]  # fixtures

KIND = PoolKind.of(spec())


async def until(seen: Callable[[], Any], within_s: float = 30) -> None:
    async with asyncio.timeout(within_s):
        while not seen():
            await asyncio.sleep(0.01)


def pods(place: ClusterSite) -> list[str]:
    return [pod["metadata"]["name"] for pod in place.cluster.objects(kinds.POD, place.namespace)]


def claims(place: ClusterSite) -> list[str]:
    return [claim["metadata"]["name"] for claim in place.cluster.objects(kinds.CLAIM, place.namespace)]


def labels(place: ClusterSite) -> list[dict[str, str]]:
    """Return the labels of the only Pod and of the only volume claim."""
    found = [place.cluster.objects(kind, place.namespace) for kind in (kinds.POD, kinds.CLAIM)]
    return [made["metadata"]["labels"] for (made,) in found]


async def known_to(other: KubernetesEngine, pooled: KubernetesPooled) -> KubernetesPooled:
    """Have a second process take a pooled sandbox for its own, as one does that was told so by a cache."""
    await other.prepare()
    address = other._parts.unclaimed(pooled.pod)
    channel, presence = await other._parts.dial(address)
    sandbox = ChannelSandbox(pooled.id, KIND.spec, channel, pooled.sandbox.posture)
    twin = replace(pooled, sandbox=sandbox, presence=presence, address=address)
    other.pool.unclaimed[twin.id] = twin
    return twin


# --- what a claim is ---


async def test_a_pooled_sandbox_has_no_owner_and_then_is_a_threads_as_if_it_had_been_made_for_it(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    engine, other = make_engine(), make_engine()
    pooled = await engine.pool.make_pooled(KIND)
    assert all("airlock.dev/tenant" not in found for found in labels(place))
    assert not await engine.owned()
    asked = replace(spec("a thread of theirs"), env={"TOKEN": "a secret"})
    sandbox = await engine.pool.claim(pooled, asked)
    assert sandbox is not None
    assert sandbox.id == pooled.id
    assert text(await run(sandbox.shell, 'echo kept > file; echo "$TOKEN"')) == "a secret\n"
    for found in labels(place):
        assert (found["airlock.dev/tenant"], found["airlock.dev/thread"]) == owner_of(asked)
    (pod,) = place.cluster.objects(kinds.POD, place.namespace)
    check(kinds.POD, pod, "the Pod")
    (lease,) = place.cluster.objects(kinds.LEASE, place.namespace)
    assert Record.of(lease).pod == pod["metadata"]["uid"], "another Pod of its name is not the sandbox"
    for words in ("a thread of theirs", asked.tenant, "a secret"):
        assert words not in str(pod)
    assert await engine.create(asked) is sandbox
    theirs = await other.create(asked)
    assert theirs.id == sandbox.id
    assert text(await run(theirs.shell, "cat file")) == "kept\n"
    await other.remove(theirs.id)
    assert await engine.stop_idle(sandbox.id)
    resumed = await engine.create(asked)
    assert (resumed.id, text(await run(resumed.shell, "cat file"))) == (sandbox.id, "kept\n")
    await engine.remove(resumed.id)
    again = await engine.create(asked)
    assert text(await run(again.shell, "cat file")) == "kept\n"


async def test_a_thread_with_files_or_a_sandbox_gets_no_pooled_sandbox_which_stays_good(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    await engine.create(spec("running"))
    old = await engine.create(spec("old"))
    await old.files.write("/workspace/file", b"old")
    await engine.remove(old.id)
    lost = await engine.create(spec("lost"))
    await lost.files.write("/workspace/file", b"lost")
    await engine.remove(lost.id)
    lease = engine._parts.site.lease_name(owner_of(spec("lost")))
    place.cluster.call(place.cluster.store.remove, kinds.LEASE, place.namespace, lease)
    pooled = await engine.pool.make_pooled(KIND)
    for thread in ("running", "old", "lost"):
        assert await engine.pool.claim(pooled, spec(thread)) is None
        assert await pooled.ping()
    for thread in ("old", "lost"):
        again = await engine.create(spec(thread))
        assert text(await run(again.shell, "cat file")) == thread
    assert await engine.pool.claim(pooled, spec("new")) is not None
    with pytest.raises(PooledRefused):
        await engine.pool.claim(pooled, spec("newer"))


async def test_a_tenant_with_nodes_of_its_own_gets_no_pooled_sandbox(make_engine: MakeEngine) -> None:
    own = {owner_of(spec())[0]: {"node_selector": {"kubernetes.io/arch": "amd64"}}}
    engine = make_engine(site={"tenants": own})
    pooled = await engine.pool.make_pooled(KIND)
    assert await engine.pool.claim(pooled, spec()) is None
    assert await engine.pool.claim(pooled, replace(spec(), tenant="another")) is not None
    await engine.remove_all_of("another")


async def test_a_pooled_sandbox_that_was_used_is_refused_and_removed(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    async def file(pooled: KubernetesPooled) -> None:
        await pooled.sandbox.files.write("/workspace/.hidden", b"")

    async def process(pooled: KubernetesPooled) -> None:
        await pooled.sandbox.processes.start(ProcessSpec("p", [b"/bin/sleep", b"100"]))

    for use, why in ((file, "not empty"), (process, "process runs")):
        pooled = await engine.pool.make_pooled(KIND)
        await use(pooled)
        with pytest.raises(PooledRefused, match=why):
            await engine.pool.claim(pooled, spec())
        assert place.left() == []
        assert not engine.has(spec())
    other = await engine.pool.make_pooled(KIND)
    larger = replace(spec(), limits=replace(spec().limits, pids=65))
    with pytest.raises(PooledRefused, match="another kind"):
        await engine.pool.claim(other, larger)
    await until(lambda: place.left() == [])


# --- several claim ---


async def test_of_two_processes_that_claim_the_same_pod_one_has_it_and_the_other_makes_another(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    one, other = make_engine(), make_engine()
    pools = [SandboxPool(one, one, one.pool, limit=1), SandboxPool(other, other, other.pool, limit=1)]
    for turn in range(2):
        pooled = await one.pool.make_pooled(KIND)
        both = [pooled, await known_to(other, pooled)]
        for pool, known in zip(pools, both, strict=True):
            pool._known(KIND).ready.append(_Ready(known, time.monotonic()))
        asked = [spec(f"{turn}-one"), spec(f"{turn}-other")]
        made = await asyncio.gather(*(pool.create(own) for pool, own in zip(pools, asked, strict=True)))
        assert [sandbox.id == pooled.id for sandbox in made].count(True) == 1
        won = next(index for index, sandbox in enumerate(made) if sandbox.id == pooled.id)
        # Whatever the API said, the relay takes one claim.
        loser = (one, other)[1 - won]
        record = loser.pool._record(pooled, asked[1 - won])
        with pytest.raises(DaemonLost):
            await both[1 - won].address.claim(both[1 - won].id, loser._parts.identity(owner_of(asked[1 - won]), record))
        for sandbox, own in zip(made, asked, strict=True):
            assert text(await run(sandbox.shell, f"echo {own.thread} >> file; cat file")) == f"{own.thread}\n"
        assert len(pods(place)) == 2
        for maker, sandbox in zip((one, other), made, strict=True):
            await maker.remove(sandbox.id)
        await asyncio.gather(*(pool.drain() for pool in pools))
        for pool in pools:
            pool._closed = False


async def test_a_pod_that_a_rival_is_seen_to_have_taken_stays_the_rivals(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    one, other = make_engine(), make_engine()
    pooled = await one.pool.make_pooled(KIND)
    await known_to(other, pooled)
    owners = [owner_of(spec("first")), owner_of(spec("second"))]
    assert await one._parts.unowned.take_pod(pooled.id, owners[0])
    await until(lambda: other._parts.pods.items[pooled.id].kind == "sandbox")
    assert not await other._parts.unowned.take_pod(pooled.id, owners[1])
    assert await one._parts.unowned.take_pod(pooled.id, owners[0])
    await other._parts.unowned.remove(pooled.id, pooled.claim, owners[1])
    assert (pods(place), claims(place)) == ([pooled.id], [pooled.claim])
    await one._parts.unowned.remove(pooled.id, pooled.claim, owners[0])
    await until(lambda: place.left() == [])


async def test_a_relay_that_was_claimed_takes_no_other_claim_though_the_api_would(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    one, other = make_engine(), make_engine()
    pooled = await one.pool.make_pooled(KIND)
    twin = await known_to(other, pooled)
    identity = one._parts.identity(owner_of(spec("first")), one.pool._record(pooled, spec("first")))
    await pooled.address.claim(pooled.id, identity)  # by one that has asked nobody
    with pytest.raises(PooledRefused):
        await other.pool.claim(twin, spec("second"))
    await until(lambda: place.left() == [])


@pytest.mark.parametrize(
    "faults",
    [
        [Fault("watch", "pods", event_delay_s=60, times=9)],
        [
            Fault("watch", "pods", drop_after_events=0, times=999),
            Fault("watch", "leases", drop_after_events=0, times=9),
        ],
        [Fault("watch", "pods", error=gone(), times=99), Fault("list", "pods", error=internal("etcd"), times=99)],
    ],
    ids=["delayed", "dropped", "410"],
)
async def test_a_process_with_an_old_cache_claims_no_pod_twice_and_removes_none_that_was_claimed(
    make_engine: MakeEngine, place: ClusterSite, faults: list[Fault]
) -> None:
    one, other = make_engine(), make_engine(clock=lambda: time.time() + 300)
    pooled = await one.pool.make_pooled(KIND)
    await other._parts.setup.prepare()
    await other._parts.pods.refresh()
    place.cluster.disturb(*(replace(fault) for fault in faults))
    other._parts.pods._watching = asyncio.create_task(other._parts.pods._follow())
    twin = await known_to(other, pooled)
    sandbox = await one.pool.claim(pooled, spec("first"))
    assert sandbox is not None
    seen = other._parts.pods.items[pooled.id]
    assert seen.kind == "pooled", "the cache is old"
    assert not await other._parts.unowned.take_pod(pooled.id, owner_of(spec("second")))
    with pytest.raises(PooledRefused):
        await other.pool.claim(twin, spec("second"))
    await other.pool.reconcile([seen])
    assert text(await run(sandbox.shell, "echo mine")) == "mine\n"
    assert pods(place) == [pooled.id]
    assert not [line for line in place.left() if owner_of(spec("second"))[1] in line]


async def test_a_claim_whose_answers_are_lost_is_done_all_the_same(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    pooled = await engine.pool.make_pooled(KIND)
    for verb, resource in (("create", "leases"), ("patch", "pods"), ("patch", "persistentvolumeclaims")):
        place.cluster.disturb(Fault(verb, resource, reset=True, after=True))
    place.cluster.disturb(Fault("update", "leases", error=internal("etcd"), after=True))
    sandbox = await engine.pool.claim(pooled, spec())
    assert sandbox is not None
    assert await sandbox.ping()
    assert [line.split()[0] for line in place.left()] == ["Pod", "workspace", "Lease"]


# --- what dies ---


async def test_kill_9_in_the_midst_of_a_claim_leaves_the_threads_sandbox_or_nothing(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    command = [sys.executable, "-m", "tests.kubernetes.claiming"]
    command += [str(place.kubeconfig), place.namespace, place.keys_namespace]
    dying = [subprocess.Popen([*command, step], stderr=subprocess.PIPE) for step in STEPS]
    for step, process in zip(STEPS, dying, strict=True):
        _, said = await asyncio.to_thread(process.communicate)
        assert process.returncode == -9, f"{step}: {said.decode()}"
    engine = make_engine(clock=lambda: time.time() + 300)  # leases have expired by then
    # A call before a look meets what is half claimed itself.
    early = await engine.create(spec("owned"))
    assert not early.id.startswith("pool-")
    left = {one.thread: one.id for one in await engine.reconcile()}
    assert set(left) == {owner_of(spec(step))[1] for step in WHOLE}
    await until(lambda: len(place.left()) == 3 * 3)
    assert sorted(pods(place)) == sorted([early.id, *left.values()])
    for step in ("made", "noted", "relayed", *WHOLE):
        sandbox = await engine.create(spec(step))
        assert sandbox.id == left.get(owner_of(spec(step))[1], sandbox.id)
        said = text(await run(sandbox.shell, "cat file 2>&-; echo x > y; cat y"))
        assert said == ("kept\nx\n" if step == "used" else "x\n")
        await engine.remove(sandbox.id)


async def test_one_who_gives_up_in_the_midst_of_a_claim_leaves_neither_a_sandbox_nor_files(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    for step in range(6):
        pooled = await engine.pool.make_pooled(KIND)
        ask = engine._parts.requests._ask
        asked = 0
        reached = asyncio.Event()

        async def stopping(*arguments: Any, ask: Any = ask, reached: asyncio.Event = reached, **named: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == step:  # noqa: B023 - of this turn
                reached.set()
            return await ask(*arguments, **named)

        with monkeypatch.context() as patched:
            patched.setattr(engine._parts.requests, "_ask", stopping)
            claiming = asyncio.create_task(engine.pool.claim(pooled, spec(f"given-up-{step}")))
            await (asyncio.sleep(0) if step == 0 else reached.wait())
            claiming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claiming
            await engine._parts.background.settled()
        assert pods(place) == []
        # The last request has the sandbox be the thread's: then its files are, too.
        kept = await engine.remove_workspace("tenant-a", f"given-up-{step}")
        assert kept is (step == 5)
        await until(lambda: place.left() == [])


async def test_unclaimed_pods_of_a_process_that_lives_are_left_alone_and_those_of_a_dead_one_are_removed(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    maker, other, third = make_engine(), make_engine(), make_engine()
    pooled = await maker.pool.make_pooled(KIND)
    await other.reconcile()
    assert await pooled.ping()
    sandbox = await maker.pool.claim(pooled, spec())
    assert sandbox is not None
    await maker.pool.make_pooled(KIND)
    await lose(maker)
    (left,) = await other.reconcile()
    assert (left.id, (left.tenant, left.thread)) == (pooled.id, owner_of(spec()))
    assert pods(place) == [pooled.id]
    drained = await third.pool.make_pooled(KIND)
    await third.close()
    assert drained.id not in pods(place)
    assert not [line for line in place.left() if drained.id in line]


async def test_a_gateway_that_reaches_no_pods_removes_none_of_the_pool_and_one_that_reaches_others_does(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    maker, later = make_engine(), make_engine(clock=lambda: time.time() + 300)
    pooled = await maker.pool.make_pooled(KIND)
    await later.prepare()
    real = later._parts.unclaimed
    later._parts.unclaimed = lambda pod: replace(real(pod), port=1)  # type: ignore[method-assign]
    await later.reconcile()
    assert pods(place) == [pooled.id]
    assert await maker.pool.claim(pooled, spec()) is not None

    broken = await maker.pool.make_pooled(KIND)
    later._parts.unclaimed = real  # type: ignore[method-assign]
    await later.create(spec("reached"))
    later._parts.unclaimed = lambda pod: replace(real(pod), port=1)  # type: ignore[method-assign]
    await later.reconcile()
    await until(lambda: broken.id not in pods(place))


async def test_a_gateway_that_has_merely_adopted_a_sandbox_removes_what_is_left_of_the_pool(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    maker, later = make_engine(), make_engine(clock=lambda: time.time() + 300)
    await maker.create(spec())
    left = await maker.pool.make_pooled(KIND)
    await lose(maker)
    await later.prepare()
    real = later._parts.unclaimed
    later._parts.unclaimed = lambda pod: replace(real(pod), port=1)  # type: ignore[method-assign]
    assert len(await later.reconcile()) == 1
    assert left.id in pods(place), "it reached none when it looked"
    await later.reconcile()
    await until(lambda: left.id not in pods(place))


async def test_a_look_for_what_is_left_over_leaves_alone_what_its_own_process_makes_or_claims(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(clock=lambda: time.time() + 300)  # nothing is young
    await engine.prepare()
    ask = engine._parts.requests._ask
    looks = 0

    async def looking(verb: str, resource: Any, *more: Any, **named: Any) -> Any:
        nonlocal looks
        answer = await ask(verb, resource, *more, **named)
        if verb in ("create", "patch") and looks < 20:
            looks += 1
            await engine._parts.pods.refresh()
            await engine.pool.reconcile([*engine._parts.pods.items.values()])
        return answer

    monkeypatch.setattr(engine._parts.requests, "_ask", looking)
    sandbox = await engine.pool.claim(await engine.pool.make_pooled(KIND), spec())
    assert sandbox is not None
    assert looks == 5
    assert await sandbox.ping()


async def _drained(place: ClusterSite, _: str) -> None:
    place.cluster.call(place.cluster.nodes.drain, place.namespace)


async def _evicted(place: ClusterSite, name: str) -> None:
    place.cluster.call(place.cluster.nodes.evict, place.namespace, name)


async def _out_of_memory(place: ClusterSite, name: str) -> None:
    place.cluster.call(place.cluster.nodes.kill, place.namespace, name, "main")


@pytest.mark.parametrize("befalls", [_drained, _evicted, _out_of_memory], ids=["drain", "eviction", "oom"])
async def test_a_pod_that_its_cluster_ends_leaves_the_pool_within_5_s_and_another_is_made(
    make_engine: MakeEngine, place: ClusterSite, befalls: Any
) -> None:
    engine = make_engine()
    place.cluster.call(place.cluster.nodes.add, place.namespace)  # drained alone
    place.cluster.call(_cordon, place, "node-1", True)
    pool = SandboxPool(engine, engine, engine.pool, limit=1)
    try:
        pool.keep(KIND, 1)
        await pool.tend()
        (pooled,) = engine.pool.unclaimed
        place.cluster.call(_cordon, place, "node-1", False)
        pool.begin()
        await befalls(place, pooled)
        await until(lambda: pooled not in engine.pool.unclaimed, 5)
        await until(lambda: pooled not in str(place.left()))
        # The pool may know the lost one for a moment longer than the engine, and makes no other meanwhile.
        await until(lambda: engine.pool.unclaimed and pool.counts["ready"] == 1)
        assert (await pool.create(spec())).id not in ("", pooled)
        assert pool.claims["hit"] == 1
    finally:
        await pool.drain()
        place.cluster.call(_cordon, place, "node-1", False)
        place.cluster.call(place.cluster.store.remove, kinds.NODE, "", place.namespace)


def _cordon(place: ClusterSite, node: str, cordoned: bool) -> None:
    """Have a node take no Pods, or take them again."""
    found = copied(place.cluster.store.find(kinds.NODE, "", node) or {})
    found["spec"]["unschedulable"] = cordoned
    place.cluster.store.put(kinds.NODE, found)


# --- how many are made ---


@pytest.mark.parametrize("claims, processes", [(12, 3), pytest.param(100, 4, marks=pytest.mark.full)])
async def test_a_burst_makes_hardly_more_pods_than_it_claims(
    make_engine: MakeEngine, place: ClusterSite, claims: int, processes: int
) -> None:
    made: set[str] = set()

    def note() -> None:
        changes = place.cluster.store.since(place.cluster.store.compacted)
        made.update(
            one.made["metadata"]["uid"]
            for one in changes
            if one.kind == kinds.POD and one.made["metadata"]["namespace"] == place.namespace
        )

    engines = [make_engine() for _ in range(processes)]
    limit = max(1, claims // 10 // processes)
    pools = [SandboxPool(FairCreation(engine), engine, engine.pool, limit=limit) for engine in engines]
    for pool in pools:
        pool.keep(KIND, limit)
        await pool.tend()
        pool.begin()

    async def one(number: int) -> str:
        sandbox = await pools[number % processes].create(spec(f"t{number}"))
        assert text(await run(sandbox.shell, f"echo {number}")) == f"{number}\n"
        place.cluster.call(note)
        return sandbox.id

    try:
        got = await asyncio.gather(*(one(number) for number in range(claims)))
        assert len(set(got)) == claims, "each has its own"
        await asyncio.gather(*(pool.settled() for pool in pools))
        place.cluster.call(note)
        most = claims + max(processes * limit, claims // 10)
        assert len(made) <= most, f"{len(made)} Pods for {claims} claims"
        # The last of several is reserved for another tenant.
        assert sum(pool.claims["hit"] for pool in pools) >= processes
    finally:
        await asyncio.gather(*(pool.drain() for pool in pools))
    assert sorted(pods(place)) == sorted(got)
