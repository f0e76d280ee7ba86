"""The engine in the mode agent-sandbox: a sandbox is a Sandbox of agents.x-k8s.io, whose controller makes the Pod."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.preflight import Preflight
from sandbox.engines.kubernetes.remains import Remains
from sandbox.engines.kubernetes.resources import GATEWAY_VERBS, REMOVAL_VERBS, SANDBOX_VERBS, VERBS
from sandbox.engines.pooled_sandbox import PooledRefused, PoolKind
from sandbox.errors import (
    EngineFull,
    ImageMissing,
    PostureTooWeak,
    RuntimeMissing,
    SandboxError,
    SandboxUnavailable,
)
from sandbox.sandbox import SandboxSpec, owner_of
from sandbox.transition import Transition
from sandbox.v1 import channel_pb2 as pb
from tests.conformance.kubernetes_engines import ACCOUNT, ClusterSite, NoWalls, cluster_of_sandboxes, rules
from tests.integration.sandbox.live_engine import run, text
from tests.kubernetes import kinds
from tests.kubernetes.agent_sandbox import SandboxController
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.controllers import condition_of, controller_of
from tests.kubernetes.sandboxes import (
    MakeEngine,
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
    resume_while_another_stalls,
    spec,
    until,
)
from tests.kubernetes.schemas import check
from tests.kubernetes.store import Made, copied

__all__ = ["engine", "make_engine", "place"]  # fixtures


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of_sandboxes(agent_sandbox=True) as found:
        yield found


def only(place: ClusterSite, kind: kinds.Kind) -> Made:
    (found,) = place.cluster.objects(kind, place.namespace)
    return found


def kinds_left(place: ClusterSite) -> list[str]:
    return [line.split()[0] for line in place.left()]


# --- what there is of a sandbox ---


async def test_a_sandbox_is_an_object_whose_pod_is_that_of_the_other_mode_and_keeps_its_files_after_it(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    sandbox = await engine.create(spec())
    made, pod, claim = only(place, kinds.SANDBOX), only(place, kinds.POD), only(place, kinds.CLAIM)
    check(kinds.SANDBOX, made, "the Sandbox")
    assert (made["metadata"]["name"], pod["metadata"]["name"]) == (sandbox.id, sandbox.id)
    wanted = manifests.pod(place.site(), spec(), owner_of(spec()), sandbox.id, claim["metadata"]["name"])
    wanted["spec"]["initContainers"][1]["ports"][0]["protocol"] = "TCP"  # as the schema has it by default
    assert made["spec"]["podTemplate"]["spec"] == wanted["spec"]
    assert wanted["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    policy = only(place, kinds.NETWORK_POLICY)
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), "its network"
    assert controller_of(claim) is None, "nothing removes the files with the sandbox"

    await sandbox.files.write("/workspace/a", b"kept")
    assert await engine.stop_idle(sandbox.id)
    assert only(place, kinds.SANDBOX)["spec"]["operatingMode"] == "Suspended"
    assert place.cluster.objects(kinds.POD, place.namespace) == []
    again = await engine.create(spec())
    assert (again.id, text(await run(again.shell, "cat a"))) == (sandbox.id, "kept")
    resumed = only(place, kinds.SANDBOX)
    assert (resumed["metadata"]["uid"], resumed["spec"]["operatingMode"]) == (made["metadata"]["uid"], "Running")
    await engine.remove(again.id)
    assert kinds_left(place) == ["workspace", "Lease"]


async def test_a_resumed_sandbox_is_used_while_its_object_still_says_that_it_is_suspended(
    engine: KubernetesEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await engine.create(spec())
    assert await engine.stop_idle(sandbox.id)
    await until(lambda: condition_of(only(place, kinds.SANDBOX), "Suspended").get("status") == "True")
    monkeypatch.setattr(SandboxController, "write_status", lambda *_: None)
    assert await (await engine.create(spec())).ping()
    assert condition_of(only(place, kinds.SANDBOX), "Suspended")["status"] == "True"


async def test_all_that_is_asked_of_the_cluster_is_granted_and_used(
    engine: KubernetesEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.boot._LOOK_S", 0.0)
    sandbox = await engine.create(spec())
    assert await engine.stop_idle(sandbox.id)
    await engine.create(spec())
    await engine.remove_all_of("tenant-a")
    granted = {
        (one.group, one.plural, verb)
        for verbs in (VERBS, SANDBOX_VERBS, GATEWAY_VERBS)
        for one in verbs
        for verb in verbs[one]
    }
    used = place.cluster.used(place.keys_namespace, ACCOUNT)
    assert used <= granted
    assert {use for use in granted if use[1] == "sandboxes"} <= used


async def test_each_tenant_has_its_objects_in_a_namespace_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    place = ClusterSite(cluster, tmp_path, namespace_per_tenant=True)
    engine = place.engine()
    try:
        sandbox = await engine.create(spec())
        (made,) = [one for namespace in place.namespaces for one in cluster.objects(kinds.SANDBOX, namespace)]
        assert made["metadata"]["namespace"] == place.site().namespace_of(owner_of(spec())) != place.namespace
        assert await engine.stop_idle(sandbox.id)
        assert (await engine.create(spec())).id == sandbox.id
        await engine.remove_all_of("tenant-a")
        await until(lambda: place.left() == [])
    finally:
        await engine.close()


# --- what befalls it ---

_object_deleted = partial(deleted, kind=kinds.SANDBOX)


@pytest.mark.parametrize(
    "befalls, reason",
    [
        (out_of_memory, "out of memory"),
        (evicted, "evicted it"),
        (deleted, "Pod was deleted"),
        (_object_deleted, "Pod"),
    ],
    ids=["oom", "evicted", "pod-deleted", "sandbox-deleted"],
)
async def test_a_sandbox_whose_pod_ends_is_lost_with_the_reason_though_the_controller_makes_another_pod(
    engine: KubernetesEngine, place: ClusterSite, befalls: Any, reason: str
) -> None:
    sandbox = await engine.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    running = asyncio.ensure_future(run(sandbox.shell, "sleep 600", timeout_s=900))
    await befalls(place, sandbox)
    async with asyncio.timeout(5):
        assert (await running).outcome == "daemon_lost"
        assert reason in await failure(engine)
    again = await engine.create(spec())
    assert again.id != sandbox.id
    assert text(await run(again.shell, "cat a")) == "kept"


async def test_a_suspended_sandbox_that_is_deleted_comes_up_anew_with_its_files(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    sandbox = await engine.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    assert await engine.stop_idle(sandbox.id)
    await deleted(place, sandbox, kinds.SANDBOX)
    again = await engine.create(spec())
    assert text(await run(again.shell, "cat a")) == "kept"


async def test_a_controller_that_sees_late_what_was_asked_of_it_ends_in_what_was_asked_last(tmp_path: Path) -> None:
    with cluster_of_sandboxes(agent_sandbox=True, lag_s=0.3) as late:
        place = ClusterSite(late, tmp_path)
        engine = place.engine()
        try:
            sandbox = await engine.create(spec())
            await sandbox.files.write("/workspace/a", b"kept")
            for _ in range(2):
                assert await engine.stop_idle(sandbox.id)
                sandbox = await engine.create(spec())
            assert text(await run(sandbox.shell, "cat a")) == "kept"
            await engine.remove(sandbox.id)
            await until(lambda: kinds_left(place) == ["workspace", "Lease"])
        finally:
            await engine.close()


# --- what does not come up ---


@pytest.mark.parametrize(
    "disturb, asked, error, message",
    [
        pytest.param(None, {"image": "no-such-image"}, ImageMissing, "cannot be pulled", marks=pytest.mark.full),
        (None, {"runtime": "no-such-runtime"}, RuntimeMissing, '"no-such-runtime" not found'),
        (quota, {}, EngineFull, "raise its ResourceQuota"),
        pytest.param(restricted, {}, SandboxUnavailable, "enforce=baseline", marks=pytest.mark.full),
    ],
    ids=["image", "runtime", "quota", "pod-security"],
)
async def test_what_the_controller_is_refused_says_what_to_do_and_leaves_nothing(
    engine: KubernetesEngine, place: ClusterSite, disturb: Any, asked: Any, error: type[SandboxError], message: str
) -> None:
    await engine.prepare()
    if disturb is not None:
        disturb(place)
    with pytest.raises(error, match=message):
        await engine.create(spec(**asked))
    await until(lambda: place.left() == [])


@pytest.mark.full
async def test_a_pod_of_a_sandbox_that_no_node_takes_is_given_up_with_the_scheduler_s_reason(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    huge = replace(spec(), limits=replace(spec().limits, memory_bytes=2**44))
    with pytest.raises(EngineFull, match=r"no node of the cluster takes the sandbox: .*Insufficient memory"):
        await engine.create(huge)
    await until(lambda: place.left() == [])


async def test_a_sandbox_whose_controller_does_not_run_is_given_up_with_what_to_do(
    engine: KubernetesEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.boot._ADDRESS_S", 1.0)
    with monkeypatch.context() as down:
        down.setattr(SandboxController, "reconcile", lambda *_: None)
        with pytest.raises(SandboxUnavailable, match=r"controller of agent-sandbox made none .*mode: pods"):
            await engine.create(spec())
        assert place.left() == []
    monkeypatch.undo()
    assert await (await engine.create(spec())).ping()


async def test_a_controller_that_fails_again_and_again_is_given_up_with_what_it_says(
    engine: KubernetesEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.boot._UNSCHEDULABLE_S", 0.5)

    def fail(controller: SandboxController, made: Made) -> float:
        controller.write_status(kinds.SANDBOX, made, controller._status(made, None, None, "no more names"))
        return 0.1

    with monkeypatch.context() as failing:
        failing.setattr(SandboxController, "reconcile", fail)
        with pytest.raises(SandboxUnavailable, match="makes no Pod: Error seen: no more names"):
            await engine.create(spec())
    assert place.left() == []


@pytest.mark.parametrize("after", [False, True])
async def test_a_process_that_is_killed_while_it_makes_a_sandbox_leaves_nothing_that_stays(
    make_engine: MakeEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    monkeypatch.setattr("sandbox.engines.kubernetes.gates.LEASE_S", 1)
    killed, later = make_engine(), make_engine()
    await later.prepare()
    await kill_while_it_creates(killed, monkeypatch, "create", "sandboxes", after=after)
    assert await later.reconcile() == []
    await until(lambda: place.left() == [])


async def test_an_object_of_which_no_record_says_is_removed_at_a_start_though_it_has_no_pod(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    before = make_engine()
    sandbox = await before.create(spec())
    assert await before.stop_idle(sandbox.id)
    lease = only(place, kinds.LEASE)["metadata"]["name"]
    place.cluster.call(place.cluster.store.remove, kinds.LEASE, place.namespace, lease)
    assert only(place, kinds.SANDBOX)["metadata"]["name"] == sandbox.id
    await make_engine().reconcile()
    assert kinds_left(place) == ["workspace"]


@pytest.mark.parametrize("stopped_before", [False, True])
async def test_a_gateway_that_stalls_neither_suspends_nor_deletes_what_another_one_has_resumed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, *, stopped_before: bool
) -> None:
    """The object is the same as before, with the same uid."""
    await resume_while_another_stalls(make_engine, monkeypatch, stopped_before=stopped_before)


# --- what others change in it ---


def _edit(place: ClusterSite, change: Callable[[Made], None]) -> None:
    """Change the only Sandbox's template, as an account may that can write Sandboxes."""

    def edit() -> None:
        made = copied(place.cluster.store.all(kinds.SANDBOX, place.namespace)[0])
        change(made["spec"]["podTemplate"])
        place.cluster.store.put(kinds.SANDBOX, made)

    if place.cluster.real:
        pytest.skip("not on a real cluster: edits are made in the store of the one for tests")
    place.cluster.call(edit)


async def test_a_stopped_sandbox_whose_template_was_made_weaker_is_refused_and_removed_when_it_is_resumed(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    """What the daemon says of its walls decides, not what is written; here its Pod's spec stands for the kernel."""

    class Walls(NoWalls):
        def refuse_weak(self, sandbox_id: str, posture: pb.Posture, spec: SandboxSpec) -> None:
            del posture, spec
            (main,) = only(place, kinds.POD)["spec"]["containers"]
            if not main["securityContext"]["readOnlyRootFilesystem"]:
                raise PostureTooWeak(f"sandbox {sandbox_id} is weaker than its spec")

    def weaken(template: Made) -> None:
        template["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False

    engine = make_engine(inspection=Walls())
    sandbox = await engine.create(spec())
    await sandbox.files.write("/workspace/a", b"kept")
    assert await engine.stop_idle(sandbox.id)
    _edit(place, weaken)
    with pytest.raises(PostureTooWeak):
        await engine.create(spec())
    assert kinds_left(place) == ["workspace", "Lease"]
    again = await engine.create(spec())
    assert (again.id != sandbox.id, text(await run(again.shell, "cat a"))) == (True, "kept")


async def test_a_stopped_sandbox_whose_template_lost_the_label_of_its_network_policy_is_not_resumed(
    engine: KubernetesEngine, place: ClusterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await engine.create(spec())
    assert await engine.stop_idle(sandbox.id)
    _edit(place, lambda template: template["metadata"]["labels"].pop(manifests.INSTANCE))
    with monkeypatch.context() as impatient, pytest.raises(SandboxUnavailable, match="did not start within"):
        impatient.setattr("sandbox.engines.kubernetes.boot._ADDRESS_S", 1.0)
        await engine.create(spec())
    await until(lambda: kinds_left(place) == ["workspace", "Lease"])
    assert await (await engine.create(spec())).ping()


# --- all that there is ---


async def test_all_that_an_instance_has_is_found_and_removed_and_nothing_of_another_one(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    other = place.engine("other")
    theirs = await other.create(spec())
    killed = make_engine()
    await killed.create(spec("running"))
    assert await killed.stop_idle((await killed.create(spec("stopped"))).id)
    await killed.pool.make_pooled(PoolKind.of(spec()))
    await lose(killed)
    place.cluster.grant(place.keys_namespace, ACCOUNT, rules(REMOVAL_VERBS), everywhere=True)
    requests = KubernetesRequests(place.kubeconfig)
    try:
        remains = Remains(requests, place.site(mode=place.mode))
        found = [one.resource.plural for one in await remains.found()]
        assert (found.count("sandboxes"), found.count("pods"), found.count("persistentvolumeclaims")) == (3, 2, 3)
        assert (found.count("leases"), found.count("secrets"), found.count("networkpolicies")) == (2, 2, 1)
        assert await remains.removed(await remains.found()) == []
        assert await remains.found() == []
        assert await theirs.ping()
    finally:
        await requests.close()
        await other.remove_all_of(spec().tenant)
        await other.close()


async def test_what_an_installation_of_pods_has_is_removed_whatever_the_cluster_serves_since(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    api = place.cluster.api
    api.withheld.add(kinds.AGENTS)
    try:
        killed = make_engine(mode="auto")
        await killed.create(spec())
        await lose(killed)
        place.cluster.grant(place.keys_namespace, ACCOUNT, rules(REMOVAL_VERBS), everywhere=True)
        api.withheld.clear()
        api.outdated[kinds.AGENTS] = "v1alpha1"
        requests = KubernetesRequests(place.kubeconfig)
        try:
            remains = Remains(requests, place.site())
            assert await remains.removed(await remains.found()) == []
            assert await remains.found() == [], "nor does it need the record of the mode"
        finally:
            await requests.close()
    finally:
        api.withheld.clear()
        api.outdated.clear()


# --- which mode it is ---


async def test_sandboxes_of_the_mode_pods_are_used_until_they_end_and_then_replaced(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    transitions: list[Transition] = []
    pods = make_engine(mode="pods")
    running, stopped = await pods.create(spec("running")), await pods.create(spec("stopped"))
    await running.files.write("/workspace/a", b"kept")
    assert await pods.stop_idle(stopped.id)
    assert place.cluster.objects(kinds.SANDBOX, place.namespace) == []
    await pods.close(keep_sandboxes=True)
    later = make_engine(on_transition=transitions.append)
    assert [left.id for left in await later.reconcile()] == [running.id]
    replaced = await later.create(spec("running"))
    assert replaced.id != running.id
    assert text(await run(replaced.shell, "cat a")) == "kept"
    await later.create(spec("stopped"))
    assert [line.split()[0] for line in place.left()][:4] == ["Sandbox", "Sandbox", "Pod", "Pod"]


async def test_a_cluster_that_does_not_serve_what_is_asked_is_named(place: ClusterSite) -> None:
    async def refused(mode: str) -> str:
        engine = place.engine(mode=mode)
        try:
            await engine.prepare()
        except SandboxUnavailable as error:
            return str(error)
        finally:
            await engine.close()
        return ""

    api = place.cluster.api
    api.outdated[kinds.AGENTS] = "v1alpha1"
    try:
        for mode in ("auto", "agent-sandbox"):
            assert "agents.x-k8s.io/v1alpha1 alone" in await refused(mode)
            assert "install agent-sandbox 1.0 or later" in await refused(mode)
        assert await refused("pods") == ""
    finally:
        api.outdated.clear()
    api.withheld.add(kinds.AGENTS)
    try:
        assert "no agents.x-k8s.io" in await refused("agent-sandbox")
        assert await refused("auto") == ""
    finally:
        api.withheld.clear()


# --- one mode for all gateways of an installation ---


@pytest.fixture
def mode_of(place: ClusterSite) -> Iterator[Callable[..., Awaitable[str]]]:
    """Return the resource of the sandboxes of a gateway that starts, or why it cannot."""

    async def found(mode: str = "auto") -> str:
        engine = place.engine(mode=mode)
        try:
            await engine.prepare()
            return engine._parts.workloads.resource.plural
        except SandboxUnavailable as error:
            return str(error)
        finally:
            await engine.close()

    yield found
    place.cluster.api.withheld.clear()


async def test_an_installation_of_agent_sandbox_under_running_gateways_gives_later_ones_no_other_mode(
    place: ClusterSite, mode_of: Callable[..., Awaitable[str]], caplog: pytest.LogCaptureFixture
) -> None:
    place.cluster.api.withheld.add(kinds.AGENTS)
    assert await mode_of() == "pods"
    place.cluster.api.withheld.clear()
    assert await mode_of() == "pods"
    assert "sandboxes stay Pods, as Lease airlock-test-mode in namespace" in caplog.text
    assert "set sandbox.kubernetes.mode to agent-sandbox" in caplog.text


async def test_a_mode_that_the_operator_names_replaces_the_recorded_one(
    place: ClusterSite, mode_of: Callable[..., Awaitable[str]]
) -> None:
    assert [await mode_of(mode) for mode in ("pods", "auto", "pods", "auto")] == ["pods", "sandboxes", "pods", "pods"]
    assert [await mode_of(mode) for mode in ("agent-sandbox", "auto")] == ["sandboxes", "sandboxes"]
    place.cluster.api.withheld.add(kinds.AGENTS)
    refused = await mode_of()
    assert "serves no agents.x-k8s.io" in refused
    assert "Lease airlock-test-mode in namespace" in refused


async def test_gateways_that_start_at_once_record_one_mode(place: ClusterSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two, one has asked the cluster before agent-sandbox was installed, and the other one afterwards."""
    early, late = (place.engine(mode="auto") for _ in range(2))
    asked, installed = asyncio.Event(), asyncio.Event()
    real = Preflight.uses_sandboxes

    async def slow(self: Preflight) -> bool:
        if self.requests is early._parts.requests:
            asked.set()
            await installed.wait()
            return False
        return await real(self)

    try:
        with monkeypatch.context() as slowed:
            slowed.setattr(Preflight, "uses_sandboxes", slow)
            starting = asyncio.ensure_future(early.prepare())
            await asked.wait()
            await late.prepare()
            installed.set()
        await starting
        assert {one._parts.workloads.resource.plural for one in (early, late)} == {"sandboxes"}
    finally:
        await early.close()
        await late.close()


# --- the warm pool ---


async def test_a_pooled_sandbox_is_an_object_without_owner_and_then_a_threads_that_is_suspended_and_resumed(
    engine: KubernetesEngine, place: ClusterSite
) -> None:
    pooled = await engine.pool.make_pooled(PoolKind.of(spec()))
    assert manifests.TENANT not in only(place, kinds.SANDBOX)["metadata"]["labels"]
    sandbox = await engine.pool.claim(pooled, spec())
    assert sandbox is not None
    await sandbox.files.write("/workspace/a", b"kept")
    wanted = place.site().labels("sandbox", owner_of(spec()))
    assert wanted.items() <= only(place, kinds.SANDBOX)["metadata"]["labels"].items()
    await until(lambda: wanted.items() <= only(place, kinds.POD)["metadata"]["labels"].items())
    assert sandbox.alive, "the controller hands the labels on to the same Pod"
    assert await engine.stop_idle(sandbox.id)
    again = await engine.create(spec())
    assert (again.id, text(await run(again.shell, "cat a"))) == (pooled.id, "kept")
    await engine.remove(again.id)
    assert kinds_left(place) == ["workspace", "Lease"]


async def test_of_two_processes_that_claim_the_same_object_one_has_it_and_nothing_of_the_other_stays(
    make_engine: MakeEngine, place: ClusterSite
) -> None:
    one, other = make_engine(), make_engine()
    pooled = await one.pool.make_pooled(PoolKind.of(spec()))
    await other.prepare()
    address = other._parts.unclaimed(pooled.pod)
    channel, presence = await other._parts.dial(address)
    sandbox = ChannelSandbox(pooled.id, pooled.kind.spec, channel, pooled.sandbox.posture)
    twin = replace(pooled, sandbox=sandbox, presence=presence, address=address)
    other.pool.unclaimed[twin.id] = twin
    claims = one.pool.claim(pooled, spec("one")), other.pool.claim(twin, spec("other"))
    claimed = await asyncio.gather(*claims, return_exceptions=True)
    (won,) = [found for found in claimed if not isinstance(found, BaseException)]
    assert won is not None
    assert sorted(isinstance(found, PooledRefused) for found in claimed) == [False, True]
    assert text(await run(won.shell, "echo mine")) == "mine\n"
    assert kinds_left(place) == ["Sandbox", "Pod", "workspace", "Lease"]
