"""The engine with a namespace for each tenant, and the limits that the cluster keeps for it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509

from sandbox.engines.kubernetes import allowance, manifests
from sandbox.engines.kubernetes.allowance import Allowance
from sandbox.engines.kubernetes.kubernetes_engine import KubernetesEngine
from sandbox.engines.kubernetes.resources import CLUSTER_VERBS, GATEWAY_VERBS, LEASES, NAMED, VERBS
from sandbox.errors import EngineFull, SandboxUnavailable
from sandbox.sandbox import SandboxLimits, digest
from tests.conformance.kubernetes_engines import ACCOUNT, ClusterSite
from tests.integration.sandbox.live_engine import run, text
from tests.kubernetes import kinds
from tests.kubernetes.cluster import Cluster, storage_class
from tests.kubernetes.faults import Fault
from tests.kubernetes.kinds import Kind
from tests.kubernetes.sandboxes import MakeEngine, cluster, make_engine, place, spec
from tests.kubernetes.schemas import check
from tests.kubernetes.statuses import forbidden
from tests.kubernetes.store import Made, copied

__all__ = ["cluster", "make_engine", "place"]  # fixtures

_MIB = 1024 * 1024
ALLOWED = Allowance(sandboxes=2, workspaces=10, largest=spec().limits)
TENANT = spec().tenant


class Allowed:
    """What a test allows; satisfies Allowances."""

    def __init__(self, now: Allowance = ALLOWED) -> None:
        self.now = now
        self.asked: list[str | None] = []

    async def __call__(self, tenant: str | None) -> Allowance:
        self.asked.append(tenant)
        return self.now


@pytest.fixture
def apart(cluster: Cluster, tmp_path: Path) -> ClusterSite:
    """The place of an instance whose tenants have namespaces of their own."""
    directory = tmp_path / "apart"
    directory.mkdir()
    return ClusterSite(cluster, directory, namespace_per_tenant=True)


@pytest_asyncio.fixture
async def make_apart(apart: ClusterSite) -> AsyncIterator[MakeEngine]:
    """Make engines of that instance, each another process; at the end nothing of them is left."""
    made: list[KubernetesEngine] = []

    def make(**more: Any) -> KubernetesEngine:
        made.append(apart.engine(**{"allowances": Allowed(), **more}))
        return made[-1]

    yield make
    for one in made:
        await one.close()
    last = apart.engine()
    for tenant in (TENANT, "tenant-b"):
        await last.remove_all_of(tenant)
    await last.close()
    gone(apart, TENANT)
    assert apart.left() == []


def of(place: ClusterSite, kind: Kind, tenant: str = TENANT) -> list[Made]:
    return place.cluster.objects(kind, place.site().namespace_of_tenant(digest(tenant)))


def gone(place: ClusterSite, tenant: str) -> None:
    """Wait until the namespace of a tenant is gone."""
    name = place.site().namespace_of_tenant(digest(tenant))
    place.cluster.wait(lambda: place.cluster.store.find(kinds.NAMESPACE, "", name) is None)


def edit(place: ClusterSite, kind: Kind, made: Made, **spec: Any) -> None:
    place.cluster.apply({**made, "spec": {**made["spec"], **spec}})


class TestTenantsApart:
    async def test_what_is_a_tenant_s_is_in_its_own_namespace_closed_and_limited(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine = make_apart()
        mine = await engine.create(spec())
        other = await engine.create(replace(spec(), tenant="tenant-b"))
        await mine.files.write("/workspace/a", b"mine")
        for tenant, sandbox in ((TENANT, mine), ("tenant-b", other)):
            (pod,) = of(apart, kinds.POD, tenant)
            assert pod["metadata"]["name"] == sandbox.id
            assert len(of(apart, kinds.CLAIM, tenant)) == 1
            (secret,) = of(apart, kinds.SECRET, tenant)
            assert set(secret["data"]) == {"identity.pem", "ca.pem"}
            certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["identity.pem"]))
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            assert digest(tenant) in str(list(names)), "who has it can stand for no relay of another tenant"
            (policy,) = of(apart, kinds.NETWORK_POLICY, tenant)
            assert (policy["spec"]["podSelector"], policy["spec"]["policyTypes"]) == ({}, ["Ingress", "Egress"])
            (quota,), (limits,) = of(apart, kinds.QUOTA, tenant), of(apart, kinds.LIMIT_RANGE, tenant)
            assert quota["spec"]["hard"]["pods"] == "4"
            assert limits["spec"]["limits"][1]["max"] == {"storage": str(spec().limits.workspace_bytes)}
        namespace = next(one for one in apart.cluster.objects(kinds.NAMESPACE) if digest(TENANT) in str(one))
        assert TENANT not in str(namespace)
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
        assert apart.cluster.objects(kinds.POD, apart.namespace) == []
        assert [one.id for one in await engine.listed(TENANT)] == [mine.id]

    async def test_a_sandbox_goes_its_way_there_as_in_one_namespace(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine = make_apart()
        sandbox = await engine.create(spec())
        await sandbox.files.write("/workspace/a", b"kept")
        other = make_apart()
        assert (await other.create(spec())).id == sandbox.id
        await other.close(keep_sandboxes=True)
        assert await engine.stop_idle(sandbox.id)
        assert of(apart, kinds.POD) == []
        names = await engine.save_workspace(spec(), lambda contents: [entry.path for entry, _ in contents])
        assert "a" in (names or ())
        again = await engine.create(spec())
        assert (again.id, text(await run(again.shell, "cat a"))) == (sandbox.id, "kept")
        await engine.replace_workspace(spec(), lambda: iter(()))
        assert not (await run((await engine.create(spec())).shell, "ls")).output
        assert await engine.left_of(TENANT) == {"volumes": 1, "containers": 1}
        assert await engine.remove_of(TENANT, spec().thread) is not None
        assert await engine.remove_workspace(TENANT, spec().thread)
        assert apart.left() == []

    async def test_all_that_is_asked_of_the_cluster_is_granted_and_get_and_update_by_name_alone(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine = make_apart()
        await engine.reconcile()
        await engine.create(spec())
        await engine.remove_all_of(TENANT)
        granted = {(one.group, one.plural, verb) for one in CLUSTER_VERBS for verb in CLUSTER_VERBS[one]}
        granted |= {(LEASES.group, LEASES.plural, verb) for verb in VERBS[LEASES]}
        granted |= {(one.group, one.plural, verb) for one in GATEWAY_VERBS for verb in GATEWAY_VERBS[one]}
        used = apart.cluster.used(apart.keys_namespace, ACCOUNT)
        assert used <= granted
        assert {(group, plural) for group, plural, _ in granted - used} <= {
            (one.group, one.plural) for one in NAMED
        } | {(LEASES.group, LEASES.plural)}

    async def test_a_tenant_that_is_deleted_takes_its_namespace_along_and_may_come_back(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine, other = make_apart(), make_apart()
        await engine.create(spec())
        await other.create(spec())
        kept_from_ending = copied(of(apart, kinds.SECRET)[0])
        kept_from_ending["metadata"]["finalizers"] = ["somebody/waits"]
        apart.cluster.apply(kept_from_ending)
        assert await engine.remove_all_of(TENANT) == 1
        assert await engine.left_of(TENANT) == {"volumes": 0, "containers": 0}
        for process in (engine, other):  # the other one does not know yet
            with pytest.raises(SandboxUnavailable, match=r"is being deleted.*wait until it is gone"):
                await process.create(spec())
        assert apart.left() == []
        (held,) = of(apart, kinds.SECRET)
        apart.cluster.apply({**held, "metadata": {**held["metadata"], "finalizers": []}})
        gone(apart, TENANT)
        assert await (await other.create(spec())).ping()

    async def test_a_namespace_that_went_away_behind_a_process_is_made_again(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine, other = make_apart(), make_apart()
        await engine.create(spec())
        await other.remove_all_of(TENANT)
        gone(apart, TENANT)
        assert await (await engine.create(spec())).ping()

    async def test_a_namespace_of_that_name_of_another_owner_is_neither_used_nor_removed(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine = make_apart()
        name = apart.site().namespace_of_tenant(digest("tenant-c"))
        apart.cluster.namespace(name)
        theirs = replace(spec(), tenant="tenant-c")
        with pytest.raises(SandboxUnavailable, match="is not this gateway's"):
            await engine.create(theirs)
        with pytest.raises(SandboxUnavailable, match="is not this gateway's"):
            await engine.remove_all_of("tenant-c")
        labels = manifests.tenant_namespace(apart.site(), digest("tenant-c"))["metadata"]["labels"]
        held = next(one for one in apart.cluster.objects(kinds.NAMESPACE) if one["metadata"]["name"] == name)
        weaker = {**labels, "pod-security.kubernetes.io/enforce": "privileged"}
        apart.cluster.apply({**held, "metadata": {**held["metadata"], "labels": weaker}})
        with pytest.raises(SandboxUnavailable, match=r"enforces Pod Security 'privileged'.*enforce=baseline"):
            await engine.create(theirs)
        await engine.remove_all_of("tenant-c")
        gone(apart, "tenant-c")

    async def test_a_pod_elsewhere_with_the_labels_and_the_name_of_a_sandbox_is_passed_over(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine = make_apart()
        sandbox = await engine.create(spec())
        elsewhere = apart.cluster.namespace(f"{apart.namespace}-hostile")
        (pod,) = of(apart, kinds.POD)
        labels = pod["metadata"]["labels"]
        container = {"name": "main", "image": "airlock-sandbox", "command": ["true"]}
        for name in (sandbox.id, "another"):
            metadata = {"name": name, "namespace": elsewhere, "labels": labels}
            apart.cluster.apply(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
            )
        late = make_apart()
        await late.reconcile()
        assert set(late._parts.pods.items) == {sandbox.id}
        assert late._parts.pods.items[sandbox.id].uid == pod["metadata"]["uid"]
        assert await sandbox.ping()
        assert len(apart.cluster.objects(kinds.POD, elsewhere)) == 2


class TestLimits:
    async def test_a_namespace_that_controllers_have_not_seen_yet_is_waited_for(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        unknown = forbidden(kinds.POD, "p", "status unknown for quota: airlock-limits, resources: pods")
        no_account = forbidden(kinds.POD, "p", 'error looking up service account: serviceaccount "default" not found')
        apart.cluster.disturb(Fault("create", "pods", error=unknown), Fault("create", "pods", error=no_account))
        assert await (await make_apart().create(spec())).ping()

    async def test_they_follow_the_policy_before_the_next_sandbox(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        allowed = Allowed()
        engine = make_apart(allowances=allowed)
        await engine.create(spec())
        larger = replace(spec("t2"), limits=replace(spec().limits, memory_bytes=spec().limits.memory_bytes + 64 * _MIB))
        allowed.now = Allowance(3, 10, larger.limits)
        assert await (await engine.create(larger)).ping()
        (quota,), (limits,) = of(apart, kinds.QUOTA), of(apart, kinds.LIMIT_RANGE)
        assert quota["spec"]["hard"]["pods"] == "6"
        assert limits["spec"]["limits"][0]["max"]["memory"] == str(larger.limits.memory_bytes)
        assert set(allowed.asked) == {TENANT}

    async def test_a_refusal_by_limits_of_an_older_policy_has_them_corrected(
        self, make_apart: MakeEngine, apart: ClusterSite
    ) -> None:
        engine = make_apart()
        await engine.create(spec())
        (quota,), (limits,) = of(apart, kinds.QUOTA), of(apart, kinds.LIMIT_RANGE)
        edit(apart, kinds.QUOTA, quota, hard={**quota["spec"]["hard"], "persistentvolumeclaims": "1"})
        edit(apart, kinds.LIMIT_RANGE, limits, limits=[{"type": "Container", "max": {"memory": "1Mi"}}])
        assert await (await engine.create(spec("t2"))).ping()
        assert of(apart, kinds.QUOTA)[0]["spec"] == quota["spec"]
        assert of(apart, kinds.LIMIT_RANGE)[0]["spec"] == limits["spec"]

    async def test_what_was_changed_by_hand_is_right_again_after_a_while(
        self, make_apart: MakeEngine, apart: ClusterSite, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_apart()
        await engine.create(spec())
        (policy,) = of(apart, kinds.NETWORK_POLICY)
        edit(apart, kinds.NETWORK_POLICY, policy, ingress=[{}], egress=[{}])
        monkeypatch.setattr("sandbox.engines.kubernetes.namespaces._LOOK_AGAIN_S", 0)
        await engine.create(spec("t2"))
        assert of(apart, kinds.NETWORK_POLICY)[0]["spec"] == policy["spec"]

    async def test_the_cluster_refuses_what_is_beyond_them(self, make_apart: MakeEngine, apart: ClusterSite) -> None:
        engine = make_apart(allowances=Allowed(Allowance(1, 0, spec().limits)))
        for thread in ("t1", "t2"):
            await engine.create(spec(thread))
        with pytest.raises(EngineFull, match=r"has no room left: .*exceeded quota: airlock-limits"):
            await engine.create(spec("t3"))
        assert await engine.remove_of(TENANT, "t1") is not None
        assert await engine.remove_workspace(TENANT, "t1")
        assert await (await engine.create(spec("t3"))).ping()

    async def test_one_namespace_for_all_has_those_of_all(self, make_engine: MakeEngine, place: ClusterSite) -> None:
        allowed = Allowed()
        engine = make_engine(allowances=allowed)
        await engine.prepare()
        (quota,), (limits,) = (
            place.cluster.objects(kind, place.namespace) for kind in (kinds.QUOTA, kinds.LIMIT_RANGE)
        )
        assert (quota["metadata"]["name"], quota["spec"]["hard"]["pods"]) == ("airlock-test-limits", "4")
        check(kinds.QUOTA, quota, "the quota")
        check(kinds.LIMIT_RANGE, limits, "the limits")
        await engine.create(spec())
        assert allowed.asked == [None]

    async def test_defaults_of_another_limit_range_make_no_sandbox_outdated(
        self, make_engine: MakeEngine, place: ClusterSite
    ) -> None:
        amounts = {"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"}
        limits = [{"type": "Container", "default": amounts, "defaultRequest": amounts}]
        metadata = {"name": "theirs", "namespace": place.namespace}
        place.cluster.apply(
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
        )
        engine = make_engine()
        sandbox = await engine.create(spec())
        (pod,) = place.cluster.objects(kinds.POD, place.namespace)
        assert pod["spec"]["containers"][0]["resources"]["limits"]["hugepages-2Mi"] == "2Mi", "they were applied"
        assert await engine.stop_idle(sandbox.id)
        again = await make_engine().create(spec())
        assert (again.id, again.outdated) == (sandbox.id, False)

    @pytest.mark.parametrize(
        "amount, milli, written",
        [
            (0, False, "0"),
            (1024**3, False, "1073741824"),
            (2_048_000, False, "2048k"),
            (2**70, False, str(2**63 - 1)),
            (1500, True, "1500m"),
            (4000, True, "4"),
            (2_000_000, True, "2k"),
        ],
    )
    def test_quantities_are_written_as_the_api_writes_them(self, amount: int, milli: bool, written: str) -> None:
        assert allowance.canonical(amount, milli=milli) == written


class TestPlacement:
    async def test_a_tenant_s_sandboxes_go_where_the_operator_says(
        self, make_engine: MakeEngine, place: ClusterSite
    ) -> None:
        taint = {"key": "tenant", "value": "b", "effect": "NoSchedule"}
        place.cluster.call(place.cluster.nodes.add, f"{place.namespace}-b", None, {"tenant": "b"}, [taint])
        place.cluster.apply(storage_class(f"{place.namespace}-fast", default=False))
        own = {
            "node_selector": {"tenant": "b"},
            "tolerations": [taint],
            "topology_spread": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            "storage_class": f"{place.namespace}-fast",
        }
        engine = make_engine(site={"tenants": {digest("tenant-b"): own}, "node_selector": {}})
        try:
            await engine.create(spec())
            theirs = await engine.create(replace(spec(), tenant="tenant-b"))
            pods = {one["metadata"]["name"]: one for one in place.cluster.objects(kinds.POD, place.namespace)}
            assert pods[theirs.id]["spec"]["nodeName"] == f"{place.namespace}-b"
            (spread,) = pods[theirs.id]["spec"]["topologySpreadConstraints"]
            assert spread["labelSelector"]["matchLabels"] == {"airlock.dev/instance": "test"}
            assert len({one["spec"]["nodeName"] for one in pods.values()}) == 2
            classes = {one["spec"]["storageClassName"] for one in place.cluster.objects(kinds.CLAIM, place.namespace)}
            assert classes == {"standard", f"{place.namespace}-fast"}
        finally:
            await engine.remove_all_of("tenant-b")
            place.cluster.call(place.cluster.store.remove, kinds.NODE, "", f"{place.namespace}-b")


def test_the_name_of_a_tenant_s_namespace_fits_whatever_the_instance_is_called() -> None:
    for instance in ("i1", "x" * 40, "Not a name"):
        site = manifests.Site(instance, namespace_per_tenant=True)
        name = site.namespace_of_tenant(digest("a tenant"))
        made = manifests.tenant_namespace(site, digest("a tenant"))
        assert len(name) <= 63
        assert made["metadata"]["name"] == name
        check(kinds.NAMESPACE, made, "the namespace")


def test_objects_of_limits_are_valid() -> None:
    site = manifests.Site("i1")
    for allowed in (ALLOWED, Allowance(64, 2**53, SandboxLimits(workspace_bytes=2**40))):
        check(kinds.QUOTA, allowance.resource_quota(site, allowed), "the quota")
        check(kinds.LIMIT_RANGE, allowance.limit_range(site, allowed), "the limits")
