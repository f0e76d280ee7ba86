"""Boot: the start of a sandbox's Pod, the claim of its relay, and the handshake. Readiness is the daemon's own word."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf import text_format

from sandbox.client.channel import Channel
from sandbox.engines import posture as judged
from sandbox.engines.handshake import introduced
from sandbox.engines.kubernetes.attached import Attached
from sandbox.engines.kubernetes.kubernetes_requests import CLAIMS, Made
from sandbox.engines.kubernetes.manifests import RELAY_PORT
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.pods import Pod
from sandbox.engines.kubernetes.records import Record
from sandbox.engines.posture import MOVING_VERSION, HostKernel, weaknesses
from sandbox.errors import DaemonLost, PostureTooWeak, SandboxUnavailable
from sandbox.sandbox import Owner, SandboxSpec
from sandbox.v1 import channel_pb2 as pb

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

# From the Pod's creation until it has an address: the scheduler, the volume, the image.
_ADDRESS_S = 60.0
# A volume that is made for the claim can have the scheduler say so for a moment.
_UNSCHEDULABLE_S = 4.0
# From then until the daemon answers: init containers, the daemon's start.
_ANSWER_S = 30.0
# How often it is asked why there is no Pod.
_LOOK_S = 0.5
_FIRST_DIAL_S = 0.01
_LONGEST_DIAL_S = 0.1


@dataclass(frozen=True)
class Inspection:
    """What is asked of a sandbox before it is used: its release, and what holds it."""

    allow_unlimited_pids: bool = False

    async def introduced(self, channel: Channel) -> pb.Posture:
        return await introduced(channel)

    def refuse_weak(self, sandbox_id: str, posture: pb.Posture, spec: SandboxSpec) -> None:
        """Raise PostureTooWeak, with every weakness, for a sandbox that is weaker than the spec asks."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("posture of sandbox %s: %s", sandbox_id, text_format.MessageToString(posture, as_one_line=True))
        # Its node's kernel is not this process' own; swap is the kubelet's, which uses none by default.
        host = HostKernel(swap_limited=False, landlock=posture.landlock_version >= MOVING_VERSION)
        promise = judged.kubernetes(pids_limited=not self.allow_unlimited_pids)
        found = weaknesses(posture, spec, host=host, promise=promise)
        if found:
            log.warning("sandbox %s is refused: %s", sandbox_id, " ".join(found))
            raise PostureTooWeak("the sandbox is weaker than its spec and was removed: " + " ".join(found))


@dataclass(frozen=True)
class Boot:
    """Starts Pods. What it started it does not remove."""

    parts: Parts
    inspection: Inspection

    async def started(self, owner: Owner, record: Record, body: Made) -> Attached:
        """Have a Pod started, claim it and attach to its daemon, which has answered. Raises SandboxError."""
        parts = self.parts
        pod = await self.placed(body)
        identity, relay = parts.identity(owner, record), parts.unclaimed(pod)
        claimed = False

        async def attached() -> Attached:
            nonlocal claimed
            if not claimed:
                try:
                    await relay.claim(record.sandbox, identity)
                except DaemonLost as error:
                    # Its answer to an earlier attempt may have been lost: only the holder of the key can have the name.
                    log.info("sandbox %s was not claimed: %s", record.sandbox, error)
                claimed = True
            return await parts.attach(owner, record, pod)

        return await self.dialled(pod, attached)

    async def placed(self, body: Made) -> Pod:
        """Have a Pod started and return it once it has an address. Raises SandboxError."""
        await self.parts.workloads.start(body)
        return await self._addressed(body["metadata"]["name"], body)

    async def verified(self, one: Attached, spec: SandboxSpec) -> pb.Posture:
        """Return the posture of a sandbox; raises SandboxError where it is another release's or weaker than asked."""
        posture = await self.inspection.introduced(one.channel)
        self.inspection.refuse_weak(one.sandbox_id, posture, spec)
        return posture

    async def _addressed(self, name: str, body: Made) -> Pod:
        """Return a Pod that was just started, once it has an address."""
        loop, pods = asyncio.get_running_loop(), self.parts.pods
        began_s = loop.time()
        waits_since_s: float | None = None
        look_s = began_s + _LOOK_S
        seen = False
        while True:
            news = asyncio.ensure_future(pods.news())
            try:
                pod, now_s = pods.items.get(name), loop.time()
                if pod is not None:
                    seen = True
                    pod.refuse_stillborn()
                    if pod.address:
                        return pod
                    waits_since_s = (waits_since_s or now_s) if pod.waits else None
                    if waits_since_s is not None and now_s - waits_since_s >= _UNSCHEDULABLE_S:
                        raise pod.full()
                elif seen:
                    raise SandboxUnavailable("the sandbox's Pod was deleted while it came up")
                elif now_s >= look_s:
                    look_s = now_s + _LOOK_S
                    await self.parts.workloads.refuse_stillborn(body, lasting=now_s - began_s >= _UNSCHEDULABLE_S)
                if now_s - began_s > _ADDRESS_S:
                    raise await self._not_started(body, seen=seen)
                await asyncio.wait({news}, timeout=0.25)
            finally:
                news.cancel()

    async def _not_started(self, body: Made, *, seen: bool) -> SandboxUnavailable:
        """Return why a Pod got no address: a volume that nothing makes is no refusal of its own."""
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        if not seen and (why := self.parts.workloads.absent(body)):
            return SandboxUnavailable(f"the sandbox's Pod did not start within {_ADDRESS_S:.0f} s: {why}")
        used = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in body["spec"]["volumes"]]
        claims, _ = await self.parts.requests.list(CLAIMS, namespace, self.parts.site.selector(kind="workspace"))
        for claim in claims:
            if claim["metadata"]["name"] in used and (claim.get("status") or {}).get("phase") == "Pending":
                return SandboxUnavailable(
                    f"no volume was made for claim {claim['metadata']['name']} in namespace {namespace!r} within "
                    f"{_ADDRESS_S:.0f} s: see whether the provisioner of storage class "
                    f"{claim['spec'].get('storageClassName', '')!r} runs and has room, or set another "
                    "sandbox.kubernetes.storage_class"
                )
        return SandboxUnavailable(
            f"the sandbox's Pod did not start within {_ADDRESS_S:.0f} s; `kubectl describe pod {name} "
            f"--namespace {namespace}` while another one is tried has the reason. A volume that another node has is "
            "released by the cluster minutes after that node was lost"
        )

    async def dialled(self, pod: Pod, dial: Callable[[], Awaitable[_Value]]) -> _Value:
        """Return what `dial` does once it gets through."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_DIAL_S
        deadline_s = loop.time() + _ANSWER_S
        while True:
            try:
                return await dial()
            except OSError as error:
                found = self.parts.pods.items.get(pod.name)
                if found is None or found.uid != pod.uid:
                    raise SandboxUnavailable("the sandbox's Pod was deleted while it came up") from error
                found.refuse_stillborn()
                if loop.time() > deadline_s:
                    raise SandboxUnavailable(
                        f"the sandbox daemon did not start within {_ANSWER_S:.0f} s ({error}): the network must let "
                        f"the gateway reach port {RELAY_PORT} of the Pods in namespace "
                        f"{self.parts.site.namespace_of(pod.owner)!r}"
                    ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_DIAL_S)
