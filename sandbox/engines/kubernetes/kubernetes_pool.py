"""KubernetesPool: Pods that are made before a thread asks, and given to a thread by a claim.

A pooled sandbox is a Pod as any other, over a volume claim of its own, without an owner in its labels. Its maker is
attached to its daemon, which notices when that process dies: one that no process is attached to is left over.

The steps of a claim, and what a process that dies after each leaves:

    the thread's Lease, with a record     the gate expires: reconcile(), or the thread's next call, removes what has no
    of what is claimed, its gate shut     other owner. A thread that has a Lease gets no pooled sandbox
    the owner in the labels of the Pod    the same; a compare-and-swap, which one of several processes wins
    those of its volume claim             the same
    the claim of its relay                the same; the relay takes one
    the record "running", the gate open   the thread's sandbox, as if it had been made for it

Five requests to the API; one of them only reads, and goes along with the first.
"""

import asyncio
import logging
import random
import secrets
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.presence import Presence
from sandbox.client.tls_address import TlsAddress
from sandbox.engines.background import over
from sandbox.engines.kubernetes import manifests
from sandbox.engines.kubernetes.attached import Attached
from sandbox.engines.kubernetes.boot import Boot
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.parts import Parts, is_over
from sandbox.engines.kubernetes.pods import Pod, created_s
from sandbox.engines.kubernetes.reachability import retired
from sandbox.engines.kubernetes.records import Record
from sandbox.engines.kubernetes.resources import CLAIMS
from sandbox.engines.pooled_checks import refuse_used, settled
from sandbox.engines.pooled_sandbox import PooledRefused, PooledSandbox, PoolKind, pooled_id
from sandbox.errors import DaemonLost, EngineUnavailable, SandboxError, reason_of
from sandbox.sandbox import Owner, Sandbox, SandboxSpec, owner_of

log = logging.getLogger(__name__)

_FROM_POOL = "it was made ahead, for the pool"
_NOT_MINE = "it was claimed or removed by another gateway"
_GIVEN_UP = "its caller gave up"
# What is younger may still be coming up in another process; longer than a Pod may take to do so.
_YOUNG_S = 120.0
# Pods of lost nodes take seconds each.
_LOOKS_AT_ONCE = 16
# So many of its own say whether this process reaches any Pod.
_ASKED = 4


@dataclass(frozen=True, eq=False)
class KubernetesPooled(PooledSandbox):
    """`presence` is its maker's place at the daemon."""

    pod: Pod
    claim: str
    claim_version: str
    address: TlsAddress
    presence: Presence

    def close(self) -> None:
        self.presence.close()
        self.sandbox.close()

    def lose(self, reason: str) -> None:
        self.sandbox.channel.mark_lost(DaemonLost(f"the pooled sandbox is lost: {reason}"))
        self.presence.close()
        self.address.cut()


@dataclass(frozen=True)
class KubernetesPool:
    """Satisfies PoolSource, where all tenants have one namespace.

    `_mine` are those that this process makes, has, claims or removes.
    """

    parts: Parts
    boot: Boot
    unclaimed: dict[str, KubernetesPooled] = field(default_factory=dict)
    _mine: set[str] = field(default_factory=set)
    _removing: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts.pod_watchers.append(self._note_pod)

    async def make_pooled(self, kind: PoolKind) -> KubernetesPooled:
        await self.parts.prepared()
        name = pooled_id(secrets.token_hex(8))
        claim = self._claim_of(name)
        self._mine.add(name)
        try:
            pooled = await self._made(kind, name, claim)
        except BaseException as error:
            removing = self._remove(name, claim)
            if isinstance(error, Exception):
                await asyncio.shield(removing)
            raise
        self.unclaimed[name] = pooled
        self._note_pod(name, self.parts.pods.items.get(name))
        return pooled

    async def _made(self, kind: PoolKind, name: str, claim: str) -> KubernetesPooled:
        parts, site, spec = self.parts, self.parts.site, kind.spec
        await parts.namespaces.ready(spec)
        await parts.namespaces.create(CLAIMS, manifests.claim(site, None, claim, spec))
        pod = await self.boot.placed(manifests.pod(site, spec, None, name, claim))
        address = parts.unclaimed(pod)
        channel, presence = await self.boot.dialled(pod, partial(parts.dial, address))
        try:
            posture = await self.boot.inspection.introduced(channel)
            self.boot.inspection.refuse_weak(name, posture, spec)
            sandbox = ChannelSandbox(name, spec, channel, posture)
            pids = await settled(sandbox)
            bound = await parts.requests.get(CLAIMS, site.namespace, claim)  # it does not change any more
            version = "" if bound is None else bound["metadata"]["resourceVersion"]
            return KubernetesPooled(sandbox, kind, pids, pod, claim, version, address, presence)
        except BaseException:
            presence.close()
            channel.close()
            raise

    async def claim(self, pooled: KubernetesPooled, spec: SandboxSpec) -> Sandbox | None:
        if self.unclaimed.pop(pooled.id, None) is None:
            raise PooledRefused("this sandbox of the pool was claimed or removed already")
        own = self.parts.site.tenants.get(owner_of(spec)[0], {})
        if own.keys() - {"snapshot_class"}:  # on nodes or in storage of its own
            self.unclaimed[pooled.id] = pooled
            return None
        given_up = asyncio.Event()
        # Not cancelled: what a request that was under way has done would not be known.
        claiming = asyncio.ensure_future(self._claim(pooled, spec, given_up))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            given_up.set()
            self.parts.background.begin(self._end_unwanted(claiming, pooled.id, owner_of(spec)))
            raise
        except EngineUnavailable:
            raise
        except (SandboxError, OSError) as error:
            log.warning("sandbox %s of the pool is not used: %s", pooled.id, error)
            raise PooledRefused(str(error)) from error

    async def _claim(self, pooled: KubernetesPooled, spec: SandboxSpec, given_up: asyncio.Event) -> Sandbox | None:
        owner, record = owner_of(spec), self._record(pooled, spec)
        checking = asyncio.ensure_future(self._check(pooled, spec))
        # A thread without a record has files all the same where that was lost.
        left = asyncio.ensure_future(self.parts.claim_left_of(owner))
        try:
            async with self.parts.gates.entered(owner, first=record, wait_s=0) as gate:
                if gate is not None:
                    found = await self._taken(gate, pooled, spec, (left, checking), given_up)
                    if found is not None:
                        return found
            self.unclaimed[pooled.id] = pooled
            self._note_pod(pooled.id, self.parts.pods.items.get(pooled.id))
            return None
        except BaseException:
            await self._drop(pooled)
            raise
        finally:
            for task in (checking, left):
                task.cancel()
                await over(task)

    async def _end_unwanted(self, claiming: asyncio.Future[Sandbox | None], sandbox_id: str, owner: Owner) -> None:
        """Remove a sandbox whose caller gave up too late to undo the claim; another call may have it by now."""
        await over(claiming)
        if claiming.cancelled() or claiming.exception() or claiming.result() is None:
            return
        async with self.parts.gates.entered(owner) as gate:
            if gate is None or (gate.record.state, gate.record.sandbox) != ("running", sandbox_id):
                return
            if await retired(self.parts, gate, attached=False, busy=False):
                await self.parts.drop(gate, _GIVEN_UP)

    def _record(self, pooled: KubernetesPooled, spec: SandboxSpec) -> Record:
        now_s = self.parts.lifetime.clock()
        record = Record(
            state="creating",
            sandbox=pooled.id,
            claim=pooled.claim,
            fresh=True,
            epoch=self.parts.new_epoch(),
            created_s=now_s,
            thread=spec.thread,
            image=spec.image,
            runtime=spec.runtime,
        )
        return replace(record, made=self.parts.made(spec, owner_of(spec), record))

    async def _check(self, pooled: KubernetesPooled, spec: SandboxSpec) -> None:
        if pooled.kind != PoolKind.of(spec):
            raise PooledRefused("it is of another kind")
        await refuse_used(pooled.sandbox, pooled.pids)

    async def _taken(
        self,
        gate: Gate,
        pooled: KubernetesPooled,
        spec: SandboxSpec,
        judged: tuple[asyncio.Future[str], asyncio.Future[None]],
        given_up: asyncio.Event,
    ) -> Sandbox | None:
        """Have a pooled sandbox be that of the thread behind a gate, if that has no files; what fails leaves nothing.

        `judged` are on their way: whether the thread has files, and the look at the sandbox.
        """
        parts, owner, record = self.parts, gate.owner, gate.record
        one: Attached | None = None
        having_files: asyncio.Future[bool] | None = None
        try:
            left, checking = judged
            if await left:
                await gate.write(Record())
                return None
            parts.record(owner, record, "creating", _FROM_POOL)
            identity = parts.identity(owner, record)
            await checking
            if not await parts.unowned.take_pod(pooled.id, owner):
                raise PooledRefused(_NOT_MINE)
            having_files = asyncio.ensure_future(parts.unowned.take_claim(pooled.claim, pooled.claim_version, owner))
            if not pooled.alive:
                raise PooledRefused(str(pooled.sandbox.channel.lost))
            pooled.presence.close()  # the relay ends what was connected under its old name
            await pooled.address.claim(pooled.id, identity)
            pooled.close()
            one = await parts.attach(owner, record, pooled.pod)
            posture = await self.boot.verified(one, spec)
            if not await having_files:
                raise PooledRefused(_NOT_MINE)
            if given_up.is_set():
                raise PooledRefused(_GIVEN_UP)
            running = replace(record, state="running", since_s=parts.lifetime.clock(), fresh=False)
            record = await gate.finish(replace(running, pod=one.pod_uid))
        except BaseException as error:
            if one is not None:
                one.close()
            pooled.close()
            await over(having_files)
            await self._undone(gate, error)
            raise
        self._mine.discard(pooled.id)
        parts.record(owner, record, "running", "ready in the pool")
        return parts.attached.use(one, record, spec, posture)

    async def _undone(self, gate: Gate, error: BaseException) -> None:
        """Remove what a failed claim leaves."""
        parts, record = self.parts, gate.record
        try:
            await parts.unowned.remove(record.sandbox, record.claim, gate.owner)
            await gate.write(Record())
            parts.record(gate.owner, record, "failed", reason_of(error))
        except SandboxError as failure:
            log.warning("sandbox %s could not be removed, a later look will: %s", record.sandbox, failure)

    async def discard(self, pooled: KubernetesPooled) -> None:
        """Remove a pooled sandbox and all that it has, even if the caller is cancelled."""
        self.unclaimed.pop(pooled.id, None)
        await asyncio.shield(self._drop(pooled))

    async def discard_all(self) -> None:
        await asyncio.gather(*(self.discard(pooled) for pooled in [*self.unclaimed.values()]))

    def _drop(self, pooled: KubernetesPooled) -> asyncio.Task[None]:
        pooled.close()
        return self._remove(pooled.id, pooled.claim)

    def _remove(self, name: str, claim: str) -> asyncio.Task[None]:
        """Begin to remove what has no owner, if that has not begun."""
        task = self._removing.get(name)
        if task is None:
            task = self._removing[name] = self.parts.background.begin(self._removed(name, claim))
            task.add_done_callback(lambda _: self._removing.pop(name, None))
        return task

    async def _removed(self, name: str, claim: str) -> None:
        try:
            await self.parts.unowned.remove(name, claim)
        except SandboxError as error:
            log.warning("sandbox %s of the pool stays until a gateway starts: %s", name, error)
        finally:
            self._mine.discard(name)

    def _note_pod(self, name: str, pod: Pod | None) -> None:
        """Have a sandbox leave the pool whose Pod has ended, or is not what it was."""
        pooled = self.unclaimed.get(name)
        if pooled is None:
            return
        other = pod is not None and (pod.uid != pooled.pod.uid or pod.kind != manifests.POOLED)
        reason = "its Pod no longer exists" if pod is None else "it is another gateway's" if other else pod.ended
        if reason:
            log.warning("sandbox %s leaves the pool: %s", name, reason)
            del self.unclaimed[name]
            pooled.lose(reason)
            self._drop(pooled)

    # --- what processes that are gone left ---

    async def reconcile(self, pods: list[Pod]) -> None:
        """Remove unclaimed Pods that no process has, and claims whose Pod was not made or is gone; once more later.

        A process that is coming up with one is not attached yet, and the connection of one whose machine was lost ends
        late.
        """
        if self.parts.site.namespace_per_tenant:
            return
        if await self._looked(pods):
            self.parts.later.append(asyncio.create_task(self._look_again()))

    async def _look_again(self) -> None:
        # Processes that look at the same time look like makers to each other.
        await asyncio.sleep(_YOUNG_S * random.uniform(1.0, 1.5))  # noqa: S311
        with suppress(SandboxError):
            await self.parts.pods.refresh()
            await self._looked([*self.parts.pods.items.values()])

    async def _looked(self, pods: list[Pod]) -> bool:
        """Return whether something may be left over, and it is too early to say."""
        parts, site = self.parts, self.parts.site
        unclaimed = [pod for pod in pods if pod.kind == manifests.POOLED and pod.name not in self._mine]
        at_once = asyncio.Semaphore(_LOOKS_AT_ONCE)

        async def looked(pod: Pod) -> bool:
            async with at_once:
                if left := await self._is_left(pod):
                    log.info("removing the sandbox %s of a pool that is gone", pod.name)
                    await self._remove(pod.name, self._claim_of(pod.name))
                return left

        unsure = not all(await asyncio.gather(*(looked(pod) for pod in unclaimed)))
        claims, _ = await parts.requests.list(CLAIMS, site.namespace, site.selector(kind=manifests.POOLED))
        used = {self._claim_of(name) for name in (*(pod.name for pod in pods), *self._mine)}
        for made in claims:
            if made["metadata"]["name"] not in used:
                if self._is_young(created_s(made)):
                    unsure = True
                else:
                    await parts.unowned.remove("", made["metadata"]["name"])
        return unsure

    async def _is_left(self, pod: Pod) -> bool:
        """Return whether no process has an unclaimed Pod."""
        old = not self._is_young(pod.created_s)
        if not pod.address or pod.ended:
            return old
        try:
            channel, presence = await self.parts.dial(self.parts.unclaimed(pod))
        except (SandboxError, OSError) as error:
            return old and (is_over(error) or await self._reaches_pods())
        try:
            # Its maker attaches as soon as the daemon answers.
            for _ in range(10 if self._is_young(pod.created_s) else 1):
                if presence.others:
                    return False
                await asyncio.sleep(0.1)
            return True
        finally:
            presence.close()
            channel.close()

    async def _reaches_pods(self) -> bool:
        """Return whether a Pod answers this process; else its own network may fail, and others have what it sees."""
        attached = (one for one in self.parts.attached.by_id.values() if one.channel.lost is None)
        mine: list[KubernetesPooled | Attached] = [*self.unclaimed.values(), *attached]
        return any(await asyncio.gather(*(one.ping() for one in mine[:_ASKED])))

    def _is_young(self, created_s: float) -> bool:
        return self.parts.lifetime.clock() - created_s < _YOUNG_S

    def _claim_of(self, name: str) -> str:
        """Return the name of a pooled sandbox's volume claim."""
        return self.parts.site.name("workspace", name)
