"""The checks of a Kubernetes cluster by `airlock doctor`: what it says of itself, and what is tried out on it.

What is tried out leaves nothing behind (sandbox/engines/kubernetes/trial.py). No check needs a permission that the
gateway does not have; what only some accounts may read is left out where it is refused.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime

from gateway.cli.finding import Finding
from gateway.cli.terminal import SlowWork
from gateway.composition.kubernetes import requests_of, site_of
from gateway.config.config import Config
from gateway.tenancy.tenants import Tenant
from sandbox.engines.kubernetes.boot import Inspection
from sandbox.engines.kubernetes.copied_volumes import snapshot_classes
from sandbox.engines.kubernetes.image_probe import missing_images
from sandbox.engines.kubernetes.kubernetes_requests import KubernetesRequests
from sandbox.engines.kubernetes.manifests import Site
from sandbox.engines.kubernetes.network_probe import SETTLE_S, Reached, Target, probe
from sandbox.engines.kubernetes.preflight import Preflight
from sandbox.engines.kubernetes.recorded_mode import as_recorded
from sandbox.engines.kubernetes.resources import STORAGE_CLASSES
from sandbox.engines.kubernetes.trial import OWNER, Trial, trial
from sandbox.errors import EngineFull, EngineUnavailable, RuntimeMissing, SandboxError, SandboxUnavailable
from sandbox.file_rules import FILE_RULES_LANDLOCK_VERSION
from sandbox.sandbox import Sandbox, SandboxSpec

_BY_HAND = "kubernetes.io/no-provisioner"
# Certificates of the channel are valid from an hour before they are made.
_CLOCKS_FAIL_S, _CLOCKS_WARN_S = 1800.0, 30.0
# What a plugin may leave open although it enforces policies, and how to close it.
_CLOSED_BY = {
    Target.KUBELET: (
        "a NetworkPolicy need not cover a Pod's own node: close that by the plugin (Calico: "
        "defaultEndpointToHostAction Drop; Cilium: no policy of its own that allows the entity host; Amazon's cannot), "
        "or drop what comes from Pods of sandboxes in the nodes' packet filter (docs/kubernetes.md)"
    ),
    Target.METADATA: "have the cloud refuse it to Pods, as IMDSv2 with a hop limit of 1 does, or drop it on the nodes",
    Target.DNS: "withdraw the plugin's policy, such as one for the whole cluster, that lets all Pods ask for names",
    Target.NODE_DNS: "drop what comes to the cache from Pods of sandboxes in the nodes' packet filter",
}


@dataclass
class ClusterChecks:
    """The checks of the cluster that a configuration names, and their findings.

    `instance` is that of the gateways of the database, None if none has served that.
    """

    config: Config
    tenants: Mapping[str, Tenant]
    slow: SlowWork
    instance: str | None = None
    settle_s: float = SETTLE_S
    findings: list[Finding] = field(default_factory=list)

    async def run(self) -> Sequence[Finding]:
        requests = requests_of(self.config)
        try:
            self.slow.at("the Kubernetes cluster")
            await self._check_api(requests)
            preflight = Preflight(requests, await self._site(requests))
            sandboxes = await self._check_agents(preflight)
            if await self._check_account(preflight, sandboxes=sandboxes):
                by_hand = await self._check_storage(preflight)
                await self._check_snapshot_classes(preflight)
                async with trial(requests, preflight.site) as under_way:
                    usable = await self._check_admission(Preflight(requests, under_way.site))
                    await self._try(under_way, usable, volume=not by_hand)
        except EngineUnavailable as error:
            self._add("cluster", False, "does not answer", str(error))
        except SandboxError as error:
            self._add("trial", False, "nothing more could be tried out", str(error))
        finally:
            await requests.close()
        return self.findings

    def _add(self, what: str, ok: bool, detail: str, fix: str = "", *, warn: bool = False) -> None:
        self.findings.append(Finding.of(what, ok, detail, fix, "warning" if warn else "failed"))

    async def _site(self, requests: KubernetesRequests) -> Site:
        """Return where the gateways make sandboxes, in the mode that they have recorded, for another instance."""
        site = site_of(self.config, self.instance or "doctor")
        with contextlib.suppress(SandboxUnavailable):  # a permission that is missing is a finding of its own
            site = await as_recorded(requests, site)
        return replace(site, instance="doctor")

    async def _check_api(self, requests: KubernetesRequests) -> None:
        version, date = await requests.about("/version")
        self._add(
            "cluster", True, f"Kubernetes {(version or {}).get('gitVersion', 'of no version')} at {requests.host}"
        )
        try:
            apart_s = abs(parsedate_to_datetime(date).timestamp() - time.time())
        except ValueError:
            return
        fix = "set the clocks of this machine and of the nodes by NTP: certificates are valid for a time"
        detail = f"{apart_s:.0f} s apart from the cluster's"
        self._add("clock", apart_s <= _CLOCKS_WARN_S, detail, fix, warn=apart_s <= _CLOCKS_FAIL_S)

    async def _check_account(self, preflight: Preflight, *, sandboxes: bool) -> bool:
        """Check namespace and permissions; return whether anything else can be checked."""
        missing = await preflight.missing(sandboxes=sandboxes)
        fix = f"grant the gateway's account {'; '.join(missing)}: the Role of deploy/helm/airlock has all"
        count = len(preflight.asked(sandboxes=sandboxes))
        self._add("permissions", not missing, f"{len(missing) or count} {'missing' if missing else 'granted'}", fix)
        refused = await preflight.namespace()
        where = preflight.site.namespace
        self._add(
            f"namespace {where}",
            refused is None,
            "accepts objects" if refused is None else "accepts none",
            str(refused),
        )
        return not missing and refused is None

    async def _check_agents(self, preflight: Preflight) -> bool:
        """Check that the cluster serves what a sandbox is to be; return whether that is a Sandbox object."""
        try:
            sandboxes = await preflight.uses_sandboxes()
        except EngineUnavailable:
            raise
        except SandboxError as error:
            self._add(
                "agent-sandbox", False, f"the cluster does not serve what mode {preflight.site.mode} needs", str(error)
            )
            return False
        self._add("agent-sandbox", True, f"sandboxes are {'Sandbox objects' if sandboxes else 'plain Pods'}")
        return sandboxes

    async def _check_storage(self, preflight: Preflight) -> bool:
        """Check the class of the workspaces' volumes; return whether they are made by hand."""
        named = preflight.site.storage_class
        try:
            found = await preflight.storage_class(SandboxSpec("", "", ""))
        except EngineUnavailable:
            raise
        except SandboxError as error:
            self._add("storage class", False, "no volume for a workspace", str(error))
            return True
        try:
            made = await preflight.requests.get(STORAGE_CLASSES, "", found)
        except EngineUnavailable:
            raise
        except SandboxError:
            self._add("storage class", True, f"{found}; the account may not read it")
            return False
        if made is None:
            fix = f"create StorageClass {found}, or name another one in sandbox.kubernetes.storage_class"
            self._add("storage class", False, f"{found} does not exist", fix, warn=True)
            return True
        by_hand = str(made["provisioner"]) == _BY_HAND
        detail = f"{found}{'' if named else ', the default'}, by {made['provisioner']}"
        fix = f"provide a free PersistentVolume of class {found} per thread: nothing creates them or empties used ones"
        self._add("storage class", not by_hand, detail, fix, warn=True)
        return by_hand

    async def _check_snapshot_classes(self, preflight: Preflight) -> None:
        """Check the classes of snapshots that are copies of volumes, and that the volumes' driver takes them."""
        if not snapshot_classes(preflight.site):
            return
        what = "snapshot class"
        try:
            found = await preflight.refuse_snapshot_classes()
        except EngineUnavailable:
            raise
        except SandboxError as error:
            self._add(what, False, "no snapshot can be taken", str(error))
            return
        for made in found:
            self._add(what, True, f"{made['metadata']['name']}, by {made['driver']}")
        if not found:
            self._add(what, True, "served; the account may not read the class")
        named = preflight.site.snapshot_class
        taken = [made["driver"] for made in found if made["metadata"]["name"] == named]
        with contextlib.suppress(SandboxError):  # a finding of its own
            of_volumes = await preflight.requests.get(
                STORAGE_CLASSES, "", await preflight.storage_class(SandboxSpec("", "", ""))
            )
            if taken and of_volumes is not None and of_volumes["provisioner"] not in taken:
                fix = f"name a VolumeSnapshotClass of driver {of_volumes['provisioner']}, or another storage class"
                self._add(what, False, f"{named} is of another driver than the volumes", fix)

    async def _check_admission(self, preflight: Preflight) -> Sequence[SandboxSpec]:
        """Check whether the namespace admits Pods of each runtime of a policy; return a spec for each that it does."""
        found: dict[str, SandboxSpec] = {}
        for name, tenant in self.tenants.items():
            spec = tenant.sandbox_spec("doctor")
            if spec.refused:
                self._add(f"tenant {name}", False, f"image {spec.image} is not allowed", spec.refused)
                continue
            found.setdefault(spec.runtime, spec)
        usable = []
        for runtime, spec in found.items():
            refused = await preflight.refusal(spec, OWNER)
            what = f"runtime {runtime}"
            if isinstance(refused, EngineFull):
                self._add("quota", False, "the namespace has no room for one more sandbox", str(refused))
            elif isinstance(refused, RuntimeMissing):
                self._add(what, False, "the cluster has no such RuntimeClass", str(refused))
            elif refused is not None:
                self._add("pod security", False, "the namespace admits no sandbox", str(refused))
            else:
                self._add(what, True, "the namespace admits its Pods")
                usable.append(spec)
        return usable

    async def _try(self, under_way: Trial, usable: Sequence[SandboxSpec], *, volume: bool) -> None:
        self.slow.at("the images")
        images = dict.fromkeys((under_way.site.runtime_image, *(spec.image for spec in usable)))
        missing = await missing_images(under_way, tuple(images))
        for image in images:
            detail = "cannot be pulled" if image in missing else "is there, or was pulled"
            self._add(f"image {image}", image not in missing, detail, missing.get(image, ""))
        if under_way.site.runtime_image in missing:
            return
        self.slow.at("the network policy")
        try:
            self._judge(await probe(under_way, settle_s=self.settle_s))
        except EngineUnavailable:
            raise
        except SandboxError as error:
            self._add("network policy", False, "could not be tried out", str(error))
        for spec in usable:
            if spec.image not in missing:
                self.slow.at(f"a trial sandbox, runtime {spec.runtime}")
                await self._try_sandbox(under_way, spec, volume=volume)

    def _judge(self, reached: Reached) -> None:
        what = "network policy"
        if Target.POD not in reached.outside:
            detail = "unknown: Pods without the policy do not reach each other either"
            self._add(what, False, detail, "look for another NetworkPolicy in the namespace", warn=True)
            return
        enforced = not reached.inside & {Target.POD} and not reached.outside & {Target.SANDBOX}
        found = [f"a sandbox reaches {target}" for target in Target if target in reached.inside]
        if not enforced:
            found += ["any Pod reaches a sandbox's relay"] if Target.SANDBOX in reached.outside else []
            fix = "install a network plugin that enforces NetworkPolicies, such as Calico or Cilium"
            self._add(what, False, f"not enforced: {', '.join(found)}", fix)
            return
        closed = "enforced both ways" if Target.API in reached.outside else "enforced both ways; no Pod reaches the API"
        fix = "the network plugin exempts addresses of nodes from policies: close them by its policy for hosts"
        api = Target.API in reached.inside
        self._add(what, not api, "not enforced: a sandbox reaches the API" if api else closed, fix)
        nearby = [target for target in _CLOSED_BY if target in reached.inside]
        detail = f"a sandbox reaches {', '.join(nearby)}" if nearby else "no kubelet, metadata service or DNS answers"
        fix = "; ".join(_CLOSED_BY[target] for target in nearby)
        self._add("network of the node", not nearby, detail, fix, warn=nearby == [Target.KUBELET])

    async def _try_sandbox(self, under_way: Trial, spec: SandboxSpec, *, volume: bool) -> None:
        what = "sandbox" if spec.runtime == "runc" else f"sandbox {spec.runtime}"
        try:
            # Missing limits of processes are a finding of their own.
            async with under_way.sandbox(spec, Inspection(allow_unlimited_pids=True), volume=volume) as sandbox:
                await self._use(what, sandbox)
        except EngineUnavailable:
            raise
        except SandboxError as error:
            self._add(what, False, "a trial sandbox did not start", str(error))

    async def _use(self, what: str, sandbox: Sandbox) -> None:
        ran = await sandbox.shell.execute(
            "id -u", timeout_s=10, call_id="doctor", limit_chars=1000, head_chars=100, tail_chars=100
        )
        said = b"".join(piece.data for piece in ran.output).decode("utf-8", "replace").strip()
        ok = ran.exit_code == 0 and said.isdigit() and said != "0"
        ended = f"a trial command ended with {ran.outcome}: {said}"
        self._add(what, ok, f"a trial sandbox ran a command as user {said}" if ok else ended, ran.message)
        posture, wanted = sandbox.posture, sandbox.spec.limits
        self._add(f"{what}: memory", True, f"{posture.memory_limit_bytes // 1024**2} MiB, read back from the kernel")
        limited = 0 < posture.pids_limit <= wanted.pids
        allowed = self.config.sandbox.kubernetes.allow_unlimited_pids
        fix = (
            f"set podPidsLimit to {wanted.pids} or less in the kubelets' configuration"
            f"{'' if allowed else ', or accept that with sandbox.kubernetes.allow_unlimited_pids: true'}"
        )
        detail = f"{posture.pids_limit or 'no limit'}, read back from the kernel; {wanted.pids} were asked for"
        self._add(f"{what}: processes", limited, detail, fix, warn=allowed)
        ruled = [name for name, one in self.tenants.items() if one.policy.file_rules is not None]
        if ruled and posture.landlock_version < FILE_RULES_LANDLOCK_VERSION:
            fix = "use nodes with Linux 6.2 or newer and Landlock, or write `enforcement: reading` in the policies"
            self._add(f"{what}: landlock", False, f"missing; no command of {', '.join(ruled)} starts", fix)
