"""Reachability: what becomes of a sandbox that runs, by the API's word, and does not answer one of the gateways.

That may be the sandbox (its relay is broken), or this gateway's own network, while others have calls in the sandbox. So
no look removes it. A call of its thread fails, and asks in the thread's record: `unreached_s`. A gateway that has the
sandbox attached objects, as soon as its watch shows it, by taking that back; so does one that attaches later. A call
after ASKED_S finds that none has objected, and replaces the sandbox. Without calls it ends with its lifetime.

A gateway that gets no answer from the API for so long is the one that loses: nothing else can tell that it lives.
"""

import asyncio
import logging
from dataclasses import dataclass, field, replace

from sandbox.engines.kubernetes.attached import Attached
from sandbox.engines.kubernetes.gates import Gate
from sandbox.engines.kubernetes.kubernetes_requests import WATCH_SILENCE_S
from sandbox.engines.kubernetes.manifests import RELAY_PORT
from sandbox.engines.kubernetes.parts import Parts
from sandbox.engines.kubernetes.records import Known
from sandbox.errors import SandboxError, SandboxUnavailable

log = logging.getLogger(__name__)

# Longer than a dead watch goes unnoticed, with what clocks of machines may differ by.
ASKED_S = WATCH_SILENCE_S + 30.0
_AGAIN_S = 1.0


async def refuse_unreached(parts: Parts, gate: Gate, error: Exception) -> None:
    """Return if no process reaches a sandbox, so that it can be replaced; else ask, and raise SandboxUnavailable."""
    record, now_s = gate.record, parts.lifetime.clock()
    asked = record.unreached_s and now_s - record.unreached_s >= ASKED_S
    if asked or parts.lifetime.has_ended(record):
        return
    if not record.unreached_s:
        record = await gate.write(replace(record, unreached_s=now_s))
    left_s = record.unreached_s + ASKED_S - now_s
    raise SandboxUnavailable(
        f"the sandbox runs, and this gateway cannot reach it ({error}): the network must let the gateway reach port "
        f"{RELAY_PORT} of the Pods in namespace {parts.site.namespace_of(gate.owner)!r}. Unless another one reaches "
        f"it, a call in {max(left_s, 1.0):.0f} s gets a new one with the same files"
    ) from error


async def note_reached(gate: Gate) -> None:
    """Take back what a process asked that did not reach the sandbox behind a gate, if one did."""
    if gate.record.unreached_s:
        await gate.write(replace(gate.record, unreached_s=0.0))


@dataclass(frozen=True)
class Objections:
    """Those of this process: for each sandbox that it reaches and another process asks about."""

    parts: Parts
    _under_way: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parts.lease_watchers.append(self._note)

    def _note(self, known: Known | None) -> None:
        one = None if known is None else self.parts.attached.by_id.get(known.record.sandbox)
        if known is None or not known.record.unreached_s or one is None or one.sandbox_id in self._under_way:
            return
        self._under_way.add(one.sandbox_id)
        self.parts.background.begin(self._object(one))

    async def _object(self, one: Attached) -> None:
        try:
            while self.parts.attached.by_id.get(one.sandbox_id) is one:
                if await self._has_objected(one):
                    return
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._under_way.discard(one.sandbox_id)

    async def _has_objected(self, one: Attached) -> bool:
        """Return whether nothing is left to be done."""
        try:
            async with self.parts.gates.entered(one.owner) as gate:
                if gate is not None and gate.record.sandbox == one.sandbox_id and one.channel.lost is None:
                    log.info("another gateway does not reach sandbox %s; this one does", one.sandbox_id)
                    await note_reached(gate)
        except SandboxError as error:
            log.warning("another gateway may replace sandbox %s, which it does not reach: %s", one.sandbox_id, error)
            return False
        return True
