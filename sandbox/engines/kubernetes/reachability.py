"""Reachability: whether a sandbox may be ended, and what becomes of one that runs, by the API's word, without answer.

That may be the sandbox (its relay is broken), or this gateway's own network, while others have calls in the sandbox. So
who does not reach it asks in the thread's record: `unreached_s`. A gateway that has the sandbox attached objects, as
soon as its watch shows it, by taking that back; one that has not sees whether it reaches it, and then objects too. Once
ASKED_S have passed and none has objected, the sandbox counts as idle: a call replaces it, as a restore does, and it
leaves at capacity, or when it has been idle for too long.

A gateway that gets no answer from the API for so long is the one that loses: nothing else can tell that it lives.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sandbox.engines.kubernetes.attached import Attached
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.kubernetes_requests import WATCH_SILENCE_S
from sandbox.engines.kubernetes.manifests import RELAY_PORT
from sandbox.engines.kubernetes.parts import Parts, is_over
from sandbox.engines.kubernetes.records import Known, Record
from sandbox.errors import EngineUnavailable, SandboxError, SandboxUnavailable
from sandbox.sandbox import LeftSandbox

log = logging.getLogger(__name__)

# Longer than a dead watch goes unnoticed, with what clocks of machines may differ by.
ASKED_S = WATCH_SILENCE_S + 30.0
_AGAIN_S = 1.0
# One of a thousand gateways objects before many others have tried.
_SPREAD_S = 20.0


async def retired(parts: Parts, gate: Gate, *, attached: bool, busy: bool, named: bool = False) -> bool:
    """Have a sandbox's daemon begin no call any more; False where what it does, or for whom, forbids that.

    One that no process reaches is as good as retired, also one that only this process does not reach if it was `named`:
    who it belongs to wants it ended. Nor is the daemon asked past the sandbox's lifetime and grace, for it may lie.
    """
    if parts.lifetime.has_ended(gate.record):
        return True
    mine = _mine(parts, gate.record)
    one = mine
    try:
        if one is None:
            patient = named or gate.record.sandbox in parts.attached.by_id
            one = await (parts.reached(gate) if patient else parts.attach(gate.owner, gate.record))
        return await one.presence.retire(attached=attached, busy=busy) is None
    except (SandboxError, OSError) as error:
        log.info("sandbox %s does not answer: %s", gate.record.sandbox, error)
        return (
            named or is_over(error) or not (isinstance(error, EngineUnavailable) or await note_unreached(parts, gate))
        )
    finally:
        if one is not None and one is not mine:
            one.close()


async def in_use(parts: Parts, gate: Gate) -> bool:
    """Return whether calls are under way in a sandbox; SandboxError or OSError where it does not answer."""
    mine = _mine(parts, gate.record)
    if mine is not None:
        return mine.uses.in_use()
    one = await parts.attach(gate.owner, gate.record)
    try:
        return one.presence.in_use()
    finally:
        one.close()


async def refuse_unreached(parts: Parts, gate: Gate, error: Exception) -> None:
    """Return if no process reaches a sandbox, so that it can be replaced; else ask, and raise SandboxUnavailable."""
    left_s = await note_unreached(parts, gate)
    if left_s:
        raise SandboxUnavailable(
            f"the sandbox runs, and this gateway cannot reach it ({error}): the network must let the gateway reach "
            f"port {RELAY_PORT} of the Pods in namespace {parts.site.namespace_of(gate.owner)!r}. Unless another one "
            f"reaches it, a call in {max(left_s, 1.0):.0f} s gets a new one with the same files"
        ) from error


async def note_reached(gate: Gate) -> None:
    """Take back what a process asked that did not reach the sandbox behind a gate, if one did."""
    if gate.record.unreached_s:
        await gate.write(replace(gate.record, unreached_s=0.0))


async def note_unreached(parts: Parts, gate: Gate) -> float:
    """Ask who reaches the sandbox behind a gate, if none does; return for how much longer others may object."""
    if not gate.record.unreached_s:
        await gate.write(replace(gate.record, unreached_s=parts.lifetime.clock()))
    return _left_s(parts, gate.record)


def unreached(parts: Parts) -> Sequence[LeftSandbox]:
    """Return the sandboxes of which no process has said that it reaches them, though one has asked for long enough."""
    return [
        LeftSandbox(known.record.sandbox, *known.owner)
        for known in parts.leases.items.values()
        if known.record.state == "running" and known.record.unreached_s and not _left_s(parts, known.record)
    ]


def _left_s(parts: Parts, record: Record) -> float:
    left_s = record.unreached_s + ASKED_S - parts.lifetime.clock()
    return 0.0 if parts.lifetime.has_ended(record) else max(left_s, 0.0)


def _mine(parts: Parts, record: Record) -> Attached | None:
    """Return a sandbox that this process has, and whose daemon answers as far as it knows."""
    one = parts.attached.by_id.get(record.sandbox)
    return one if one is not None and one.channel.lost is None else None


@dataclass(frozen=True)
class Objections:
    """Those of this process: for each sandbox that it reaches and another process asks about."""

    parts: Parts
    _under_way: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parts.lease_watchers.append(self._note)

    def _note(self, known: Known | None) -> None:
        if known is None or not known.record.unreached_s or known.record.sandbox in self._under_way:
            return
        self._under_way.add(known.record.sandbox)
        task = asyncio.create_task(self._object(known))
        self.parts.later.append(task)
        task.add_done_callback(self.parts.later.remove)

    async def _object(self, known: Known) -> None:
        try:
            if _mine(self.parts, known.record) is None:
                await asyncio.sleep(random.uniform(0.0, _SPREAD_S))  # noqa: S311
            while await self._reaches(known):
                if await self._has_objected(known):
                    return
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._under_way.discard(known.record.sandbox)

    async def _reaches(self, known: Known) -> bool:
        """Return whether another process still asks, and this one reaches the sandbox."""
        parts = self.parts
        now = parts.leases.items.get(parts.site.lease_name(known.owner))
        if now is None or now.record.sandbox != known.record.sandbox or not now.record.unreached_s:
            return False
        if _mine(parts, now.record) is None:
            try:
                (await parts.attach(known.owner, now.record)).close()
            except (SandboxError, OSError):
                return False
        return True

    async def _has_objected(self, known: Known) -> bool:
        """Return whether nothing is left to be done."""
        sandbox = known.record.sandbox
        try:
            async with self.parts.gates.entered(known.owner) as gate:
                if gate is not None and gate.record.sandbox == sandbox:
                    log.info("another gateway does not reach sandbox %s; this one does", sandbox)
                    await note_reached(gate)
        except SandboxError as error:
            log.warning("another gateway may replace sandbox %s, which it does not reach: %s", sandbox, error)
            return False
        return True
