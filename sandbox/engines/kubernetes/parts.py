"""What the collaborators of a Kubernetes engine share: the cluster's objects, records and gates, attached sandboxes."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from sandbox.client.channel import Channel
from sandbox.client.presence import Presence
from sandbox.client.tls_address import TlsAddress, WrongRelay
from sandbox.engines.background import BackgroundTasks
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.allowance import Allowances, unlimited
from sandbox.engines.kubernetes.attached import Attached, AttachedSandboxes, SharedUses
from sandbox.engines.kubernetes.gates import Gate, Gates
from sandbox.engines.kubernetes.kubernetes_requests import Conflict, KubernetesRequests
from sandbox.engines.kubernetes.manifests import RELAY_PORT, Site
from sandbox.engines.kubernetes.mirror import Mirror
from sandbox.engines.kubernetes.namespaces import Namespaces
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import Known, Record, owner_in
from sandbox.engines.kubernetes.resources import CLAIMS, LEASES, PODS
from sandbox.engines.kubernetes.setup import Setup, unclaimed_name
from sandbox.engines.kubernetes.unowned import Unowned
from sandbox.engines.kubernetes.workloads import Held, PodWorkloads, SandboxWorkloads, Workloads
from sandbox.engines.lifetime import Lifetime
from sandbox.engines.pooled_sandbox import is_pooled
from sandbox.errors import SandboxError, SandboxRetired, SandboxUnavailable
from sandbox.sandbox import Owner, SandboxSpec, made_digest
from sandbox.tls.identity import sandbox_name
from sandbox.transition import OnTransition, State, Transition

log = logging.getLogger(__name__)

# Longer than a Pod's grace and what a busy kubelet needs; what has not ended then has no node that says so.
_END_S = 30.0
_ATTEMPTS = 3
# How long a sandbox that does not answer is tried again: the API says within seconds that a Pod has ended.
_PATIENCE_S = 5.0
_AGAIN_S = 0.1


class PodGone(SandboxUnavailable):
    """By the API's word a sandbox's Pod has ended or is gone."""


def is_over(error: BaseException) -> bool:
    """Return whether what attach() raised says that a sandbox is of no use to any process.

    Anything else may be this process' own network, while others use the sandbox.
    """
    return isinstance(error, PodGone | WrongRelay | SandboxRetired)


@dataclass
class Parts:
    """Shared by the collaborators of one engine. What is in `background` is waited for before the engine closes."""

    requests: KubernetesRequests
    site: Site
    lifetime: Lifetime
    on_transition: OnTransition
    allowances: Allowances = unlimited
    process: str = field(default_factory=lambda: f"gateway-{secrets.token_hex(8)}")

    def __post_init__(self) -> None:
        self.background = BackgroundTasks()
        self.attached = AttachedSandboxes(self.lifetime)
        self.setup = Setup(self.requests, self.site)
        self.namespaces = Namespaces(self.requests, self.site, self.setup, self.allowances, self.background)
        where, selector = self.site.namespace, self.site.selector()
        self.pod_watchers: list[Callable[[str, Pod | None], None]] = [self.attached.note_pod]
        of_all = (PODS, self.site.scope(), selector)
        self.pods = Mirror(self.requests, of_all, Pod.of, self._note_pod, self.site.has)
        self.lease_watchers: list[Callable[[Known | None], None]] = []
        of_threads = (LEASES, where, f"{selector},{manifests.STATE}")
        self.leases = Mirror(self.requests, of_threads, Known.of, self._note_lease)
        self.unowned = Unowned(self.requests, self.site, self.pods, lambda: self.workloads)
        self.gates = Gates(self.requests, self.site, self.leases, self.process, self.lifetime.clock)
        self.later: list[asyncio.Task[None]] = []
        self._workloads: Workloads | None = None
        self._preparing = asyncio.Lock()

    @property
    def workloads(self) -> Workloads:
        if self._workloads is None:
            raise SandboxUnavailable("the engine is not prepared")
        return self._workloads

    async def prepared(self) -> None:
        """Have what every sandbox needs; raises SandboxError, and tries again the next time."""
        async with self._preparing:
            await self.setup.prepare()
            if self._workloads is None:
                kind = SandboxWorkloads if self.setup.uses_sandboxes else PodWorkloads
                self._workloads = kind(self.requests, self.site, self.namespaces, self)
            await self.namespaces.prepare()
            await self.pods.start()
            await self.leases.start()

    def _note_pod(self, name: str, pod: Pod | None) -> None:
        for noted in self.pod_watchers:
            noted(name, pod)

    def _note_lease(self, _name: str, known: Known | None) -> None:
        for noted in self.lease_watchers:
            noted(known)

    def record(self, owner: Owner, record: Record, state: State, reason: str, *, observed: bool = False) -> None:
        self.on_transition(Transition(*owner, record.sandbox, state, reason, record.thread, observed))

    def made(self, spec: SandboxSpec, owner: Owner, record: Record) -> str:
        """Return the digest of a sandbox of a spec over a thread's files."""
        pod = manifests.pod(self.site, spec, owner, record.sandbox, record.claim)
        body = self.workloads.body(pod)
        return made_digest({**body, "limits": asdict(spec.limits)})  # a Pod cannot have all of them

    def new_epoch(self) -> int:
        return time.time_ns()

    # --- Pods ---

    async def pod_removed(self, owner: Owner | None, name: str, held: Held | None = None) -> None:
        """Remove a Pod and wait for its end; of one whose node was lost no end is seen."""
        for _ in range(_ATTEMPTS):
            known = self.pods.items.get(name)
            uid = "" if known is None else known.uid
            if held is not None:
                uid = uid or await self._uid_of(owner, name)
                if not uid:
                    return
                await held()
            try:
                if await self.requests.delete(PODS, self.site.namespace_of(owner), name, uid=uid):
                    await self.pod_ended(name)
                return
            except Conflict:
                if held is None:
                    return  # another gateway's by now, under the same name
                await self.pods.refresh()  # the copy was late: behind the gate it is the thread's, whatever its uid
        raise SandboxUnavailable(f"Pod {name} changes too often to be removed")

    async def _uid_of(self, owner: Owner | None, name: str) -> str:
        """Return the uid of a thread's Pod that the mirror does not know, by the API's word; "" of none."""
        tenant, thread = owner or ("", "")
        found, _ = await self.requests.list(
            PODS, self.site.namespace_of(owner), self.site.selector(tenant=tenant, thread=thread)
        )
        return next((str(made["metadata"]["uid"]) for made in found if made["metadata"]["name"] == name), "")

    async def pod_ended(self, name: str) -> None:
        """Wait for the end of a Pod; of one whose node was lost no end is seen."""
        known = self.pods.items.get(name)
        deadline_s = asyncio.get_running_loop().time() + _END_S
        while known is not None and asyncio.get_running_loop().time() < deadline_s:
            news = asyncio.ensure_future(self.pods.news())
            there = self.pods.items.get(name)
            if there is None or there.uid != known.uid or there.unreachable:
                news.cancel()
                return
            await asyncio.wait({news}, timeout=1.0)
            news.cancel()
        if known is not None:
            log.warning("Pod %s has not ended within %.0f s; the cluster goes on removing it", name, _END_S)

    async def drop(self, gate: Gate, reason: str, *, ended_processes: int = 0) -> None:
        """Remove a thread's sandbox, whatever it does, and record that; its files stay."""
        record = gate.record
        self.attached.let_go(record.sandbox)
        await self.workloads.remove(gate.owner, record.sandbox, gate.hold)
        await gate.write(record.without_sandbox(ended_processes=ended_processes))
        self.record(gate.owner, record, "removed", reason)

    async def clean(self, gate: Gate) -> None:
        """Remove what a process left that died behind this gate, before it had recorded that it was done."""
        record = gate.record
        if record.state == "creating" or record.carrier or record.other_claim:
            log.info("removing what a lost gateway began to make for a thread: %s", record.sandbox or record.carrier)
            await self.remove_unfinished(gate)
        if record.state == "creating":
            self.record(gate.owner, record, "failed", "the process that created it was lost")
            await gate.write(replace(record.without_sandbox(), claim="" if record.fresh else record.claim))
        elif record.carrier or record.other_claim:
            await gate.write(replace(record, carrier="", other_claim=""))

    async def remove_unfinished(self, gate: Gate) -> None:
        """Remove what runs, and the claims, that a record notes and that are not done."""
        owner, record = gate.owner, gate.record
        creating = record.state == "creating"
        if creating and is_pooled(record.sandbox) and record.fresh:
            # Noted before the claim, which may have gone to another thread.
            await self.unowned.remove(record.sandbox, record.claim, owner)
            return
        for pod in (record.sandbox if creating else "", record.carrier):
            if pod:
                await self.workloads.remove(owner, pod, gate.hold)
        for claim in (record.claim if creating and record.fresh else "", record.other_claim):
            if claim:
                await self.requests.delete(CLAIMS, self.site.namespace_of(owner), claim)

    async def claim_left_of(self, owner: Owner) -> str:
        """Return the claim with a thread's files where its record was lost: no file goes for that."""
        site = self.site
        found, _ = await self.requests.list(
            CLAIMS, site.namespace_of(owner), site.selector(kind="workspace", tenant=owner[0], thread=owner[1])
        )
        there = [made for made in found if owner_in(made) == owner and not made["metadata"].get("deletionTimestamp")]
        there.sort(key=lambda made: str(made["metadata"]["creationTimestamp"]))
        return str(there[0]["metadata"]["name"]) if there else ""

    # --- the way to a daemon ---

    def address(self, host: str, name: str) -> TlsAddress:
        return TlsAddress(host, RELAY_PORT, name, self.setup.authority.contexts)

    def unclaimed(self, pod: Pod) -> TlsAddress:
        """Return the address of a Pod's relay before its claim."""
        return self.address(pod.address, unclaimed_name(self.site, "" if pod.owner is None else pod.owner[0]))

    def identity(self, owner: Owner, record: Record) -> bytes:
        """Return what a sandbox gets with its claim: its key and certificate."""
        name = sandbox_name(self.site.instance, record.sandbox, owner, record.epoch)
        return self.setup.authority.sandbox_identity(name)

    async def attach(self, owner: Owner, record: Record, pod: Pod | None = None) -> Attached:
        """Return a sandbox that runs, attached and not yet used. SandboxError or OSError where it does not answer."""
        pod = pod or self.pods.items.get(record.sandbox)
        if pod is None or not pod.address or pod.ended_as(record.pod):
            await self.pods.refresh()  # the copy may be late, and that a sandbox is over only the API may say
            pod = self.pods.items.get(record.sandbox)
        ended = "its Pod no longer exists" if pod is None else pod.ended_as(record.pod)
        if pod is None or ended:
            raise PodGone(ended)
        if not pod.address:
            raise SandboxUnavailable("it has no address")
        name = sandbox_name(self.site.instance, record.sandbox, owner, record.epoch)
        address = self.address(pod.address, name)
        channel, presence = await self.dial(address)
        return Attached(owner, record.sandbox, address, channel, SharedUses(presence, self.lifetime.clock), pod.uid)

    async def reached(self, gate: Gate) -> Attached:
        """Attach as attach() does, again while the sandbox's Pod runs and does not answer, for a few seconds."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _PATIENCE_S
        while True:
            try:
                return await self.attach(gate.owner, gate.record)
            except (SandboxError, OSError) as error:
                if is_over(error) or loop.time() > deadline_s:
                    raise
            await asyncio.sleep(_AGAIN_S)

    async def dial(self, address: TlsAddress) -> tuple[Channel, Presence]:
        """Attach to the daemon at an address; raises as attach()."""
        channel = Channel(address)
        try:
            await channel.connect()
            return channel, await Presence.attach(channel, self.process)
        except BaseException:
            channel.close()
            raise
