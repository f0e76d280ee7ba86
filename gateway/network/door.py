"""The network of sandboxes: one door for each sandbox whose policy lets it connect.

A door keeps the daemon's proxy port open, takes the connections of tool code there, and watches those that are open:
for their limits, and for a policy that no longer allows them.
"""

import asyncio
import contextvars
import math
import socket
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from agent.cancellation import ended
from agent.events import discard
from agent.tool_call import CallContext
from agent.tools.call_events import EVENTS
from gateway.network.connection_records import ConnectionRecords
from gateway.network.decision import CallUnderWay, ConnectionPolicy, Target
from gateway.network.http_request import refusal
from gateway.network.late_connection import serve
from gateway.network.opening import TRUST_FILES, Opening
from gateway.network.outgoing import Exits, Outgoing
from gateway.network.own_connections import OwnConnections
from gateway.network.thread_rules import ThreadRules
from gateway.policy.judge import Policy
from gateway.storage.approval_store import ApprovalStore
from gateway.storage.entities import Thread
from gateway.support.current_tenant import CURRENT_TENANT
from gateway.support.heavy_work import HeavyWork
from sandbox.errors import NotFound, SandboxError
from sandbox.sandbox import Sandbox

# Connections that wait while the gateway answers the one before.
_ACCEPTORS = 2
_WATCH_S = 0.5
# At most one record in so long is of a connection over a limit; the next one counts the others.
_OVER_LIMIT_S = 1.0
_NOTES_LIMIT = 5
_NOTES_KEPT = 100
# Tunnels of one sandbox, of the 512 connections that its daemon serves: calls need theirs.
_TUNNELS_LIMIT = 240
# Beyond the connections that are allowed at once, for clients that have not said yet what they want, or are refused.
_TUNNELS_SPARE = 16
_ACCEPT_AGAIN_S = 0.5
# How long the end of a call waits for its connections to end; those of programs that it left running go on.
_ENDING_S = 0.1
log = structlog.get_logger(__name__)


def environment(port: int) -> Mapping[str, str]:
    """Return the variables by which programs find the proxy. Servers of the sandbox itself are reached directly."""
    url, direct = f"http://127.0.0.1:{port}", "localhost,127.0.0.1,::1"
    upper = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": direct}
    lower = {name.lower(): value for name, value in upper.items()}
    return {**upper, **lower, "grpc_proxy": url, "NODE_USE_ENV_PROXY": "1"}


@dataclass(eq=False)
class TenantUse:
    """What the connections of all of a tenant's sandboxes use in this process."""

    open: int = 0


class _LastMinute:
    """Counts what happens, up to a limit within a minute."""

    def __init__(self) -> None:
        self._counted_s: deque[float] = deque()

    def count(self, limit: int) -> bool:
        """Count one more; False, and it is not counted, if the limit is reached."""
        now_s = time.monotonic()
        while self._counted_s and now_s - self._counted_s[0] > 60:
            self._counted_s.popleft()
        if len(self._counted_s) >= limit:
            return False
        self._counted_s.append(now_s)
        return True


@dataclass(eq=False)
class Door:
    """Satisfies connection.Exits, for one sandbox."""

    sandbox: Sandbox
    policy: ConnectionPolicy
    records: ConnectionRecords
    opening: Opening
    shared: TenantUse = field(default_factory=TenantUse)
    port: int = 0
    calls: list[CallUnderWay] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    """What calls under way were refused, in words, by call id."""
    _open: dict[Outgoing, asyncio.Task[None]] = field(default_factory=dict)
    _counted: set[Outgoing] = field(default_factory=set)
    _made: _LastMinute = field(default_factory=_LastMinute)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)
    _over_limit_s: float = -math.inf
    _unrecorded: int = 0
    _refusals: _LastMinute = field(default_factory=_LastMinute)
    _trusted: bool = False
    _closed: bool = False

    @property
    def alive(self) -> bool:
        return not self._closed and self.sandbox.alive

    async def open(self) -> None:
        """Have the daemon listen, and begin to take connections. Raises SandboxError."""
        self.port = await self.sandbox.network.open()
        await self._trust()
        for _ in range(_ACCEPTORS):
            self._begin(self._accept_all())
        self._begin(self._watch())

    async def _trust(self) -> None:
        """Have programs of the sandbox trust the tenant's authority, once connections may be opened."""
        if not self._trusted and self.opening.is_needed(self.policy.policy()):
            await self.opening.install(self.sandbox)
            self._trusted = True

    async def close(self) -> None:
        """End every connection, and have the daemon stop listening."""
        self._closed = True
        await ended(*(task for task in self._tasks if task is not asyncio.current_task()))
        await self.records.written()
        if self.sandbox.alive:
            with suppress(SandboxError):
                await self.sandbox.network.close()

    # --- Exits ---

    def request(self, target: Target) -> Outgoing:
        *others, call = self.calls or [CallUnderWay()]
        return Outgoing(target, call, self.policy, self.records.opened, tuple(others))

    def outgoing(self, target: Target, task: asyncio.Task[None] | None) -> Outgoing:
        return self.admit(self.request(target), task)

    def admit(self, one: Outgoing, task: asyncio.Task[None] | None) -> Outgoing:
        """Count a connection from now on. Over a limit it is refused already."""
        self._counted.add(one)
        self.shared.open += 1
        if task is not None:
            self._open[one] = task
        limits, over = one.limits, ""
        if len(self._open) > limits.connections:
            over = f"{limits.connections} connections are open at once"
        elif self.shared.open > limits.tenant_connections:
            over = f"{limits.tenant_connections} connections of the tenant are open at once"
        elif not self._made.count(limits.connections_per_minute):
            over = f"{limits.connections_per_minute} connections were made within a minute"
        if over:
            reason = f"the limit of the policy's network section is reached: {over}"
            one.refuse(refusal(429, "too_many_connections", reason, one.target))
        return one

    def opened(self, one: Outgoing) -> None:
        self.records.opened(one)

    def ended(self, one: Outgoing) -> None:
        self._open.pop(one, None)
        if one in self._counted:
            self._counted.discard(one)
            self.shared.open -= 1
        if one.refused is not None and one.call.call_id and one.call in self.calls:
            reason, rule = one.refused.body.get("reason", one.outcome), one.refused.body.get("rule")
            said, kept = f"{one.target.shown}{f' (rule {rule})' if rule else ''}: {reason}", self.refused
            if said not in (notes := kept.setdefault(one.call.call_id, [])) and len(notes) < _NOTES_KEPT:
                notes.append(said)
        if self._is_one_too_many(one):
            self._unrecorded += 1
            self.records.ended(one, None)
            return
        entry = one.entry()
        if self._unrecorded:
            entry = replace(entry, details={**entry.details, "over_limit_before": self._unrecorded})
            self._unrecorded = 0
        self.records.ended(one, entry)

    def _is_one_too_many(self, one: Outgoing) -> bool:
        """Return whether to count a refusal, not record it: tool code could fill the audit with refusals."""
        if one.refused is None or one.address:  # what was dialled is limited where it was made
            return False
        if one.refused.status != 429:  # requests on one connection are refused without end
            return not self._refusals.count(one.limits.connections_per_minute)
        now_s = time.monotonic()
        if now_s - self._over_limit_s < _OVER_LIMIT_S:
            return True
        self._over_limit_s = now_s
        return False

    # --- calls under way ---

    @asynccontextmanager
    async def entered(self, call: CallUnderWay) -> AsyncIterator[Mapping[str, str]]:
        """Attribute connections to a call, which runs in this block; yields the variables for its programs."""
        await self._trust()
        self.calls.append(call)
        try:
            yield {**environment(self.port), **self.opening.environment(self.policy.policy(), call.agent)}
        finally:
            try:
                await self._settled(call)
            finally:
                self.calls.remove(call)

    async def _settled(self, call: CallUnderWay) -> None:
        """Wait until the connections of a call are on record, except those that its programs left open."""
        ending = {task for one, task in self._open.items() if one.call is call}
        if ending:  # the end of a program is known before that of its connections
            await asyncio.wait(ending, timeout=_ENDING_S)
        await self.records.written()

    def notes(self, call_id: str) -> str:
        """Return what a call was refused, for the model; "" for nothing. Once."""
        found = self.refused.pop(call_id, [])
        more = f" and {len(found) - _NOTES_LIMIT} more" if len(found) > _NOTES_LIMIT else ""
        return f"network refused: {'; '.join(found[:_NOTES_LIMIT])}{more}" if found else ""

    # --- tasks ---

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Not in the caller's context: the task serves connections of other calls too.
        context = contextvars.Context()
        context.run(CURRENT_TENANT.set, self.policy.thread.tenant)
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept_all(self) -> None:
        while self.alive:
            limit = min(self.policy.policy().document.network.connections + _TUNNELS_SPARE, _TUNNELS_LIMIT)
            if len(self._serving) >= limit:  # the others wait inside the sandbox
                await asyncio.wait(self._serving, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                connection = await self.sandbox.network.accept()
            except NotFound:
                return  # the port was closed
            except SandboxError as error:
                if not self.sandbox.alive:
                    return
                log.warning("a connection of tool code is lost", sandbox=self.sandbox.id, error=str(error))
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self.begin(connection, self)
            await asyncio.sleep(0)  # it comes first

    def begin(self, connection: socket.socket, exits: Exits) -> None:
        """Serve a connection to its end."""
        serving = self._begin(self._serve(connection, exits))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, connection: socket.socket, exits: Exits) -> None:
        try:
            await serve(connection, exits)
        except Exception:
            log.exception("a connection of tool code failed", sandbox=self.sandbox.id)

    async def _watch(self) -> None:
        """End connections that are overdue, or that the policy in force denies."""
        while self.alive:
            await asyncio.sleep(_WATCH_S)
            for one, task in list(self._open.items()):
                await asyncio.sleep(0)
                if one not in self._open:
                    continue
                why = one.overdue(time.monotonic())
                if not why and one.decision is not None and not await one.still_allowed():
                    why = "policy_changed"
                if why and one in self._open:  # it may have ended while it was judged
                    one.outcome = why
                    del self._open[one]  # once: a second time it could be at its record
                    task.cancel()


@dataclass(eq=False)
class Doors:
    """The doors of this process' sandboxes, by the sandbox's id."""

    approvals: ApprovalStore
    records: ConnectionRecords
    opening: Callable[[str], Opening]
    """Returns what a tenant's connections are opened with."""
    heavy_work: HeavyWork
    rules: ThreadRules = field(default_factory=ThreadRules)
    _shared: defaultdict[str, TenantUse] = field(default_factory=lambda: defaultdict(TenantUse))
    _doors: dict[str, Door] = field(default_factory=dict)
    _opening: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def of(self, sandbox: Sandbox, thread: Thread, policy: Callable[[], Policy]) -> Door | None:
        """Return the door of a sandbox, opened if need be; None where the policy lets nothing connect.

        Raises SandboxError, Unavailable.
        """
        policy = await self.rules.over(thread, policy)
        if not policy().connects and sandbox.id not in self._doors:
            return None
        async with self._opening.setdefault(sandbox.id, asyncio.Lock()):
            door = self._doors.get(sandbox.id)
            if door is not None and not (door.alive and door.sandbox is sandbox and policy().connects):
                del self._doors[sandbox.id]
                await door.close()
                door = None
            if door is None and policy().connects:
                self._forget_dead()
                connections = ConnectionPolicy(thread, policy, self.approvals, self.heavy_work.of(thread.tenant))
                opening, shared = self.opening(thread.tenant), self._shared[thread.tenant]
                door = Door(sandbox, connections, self.records, opening, shared)
                await door.open()
                self._doors[sandbox.id] = door
        return door

    def _forget_dead(self) -> None:
        for sandbox_id in [id_ for id_, door in self._doors.items() if not door.alive]:
            self._doors.pop(sandbox_id)
            self._opening.pop(sandbox_id, None)

    async def close(self) -> None:
        """Close every door; calls must be over."""
        while self._doors:
            await self._doors.popitem()[1].close()
        await self.records.close()


@dataclass(eq=False)
class Entered:
    """A call whose programs may connect. `refusals` is for the model once the call is over; "" where there are none."""

    environment: Mapping[str, str] = field(default_factory=dict)
    refusals: str = ""

    @property
    def readable_files(self) -> tuple[str, ...]:
        """The files that the variables name."""
        return tuple(path for path in TRUST_FILES if path in self.environment.values())


@dataclass(frozen=True, eq=False)
class ThreadNetwork:
    """The network of one thread's calls, of one run or outside runs."""

    doors: Doors
    thread: Thread
    policy: Callable[[], Policy]
    run_id: str = ""
    agent: str = ""

    @asynccontextmanager
    async def entered(self, sandbox: Sandbox, context: CallContext | None, command: str) -> AsyncIterator[Entered]:
        """Let what a call starts in this block connect, as far as the policy allows. Raises SandboxError."""
        entered = Entered()
        door = await self.doors.of(sandbox, self.thread, self.policy)
        if door is None:
            yield entered
            return
        call = self._call(context, command)
        try:
            async with door.entered(call) as entered.environment:
                yield entered
        finally:
            entered.refusals = door.notes(call.call_id)

    async def own(self, sandbox: Sandbox, context: CallContext | None, tool: str) -> OwnConnections | None:
        """Return the connections of the gateway itself for a call of a tool; None where the policy lets none pass.

        Raises SandboxError.
        """
        door = await self.doors.of(sandbox, self.thread, self.policy)
        return None if door is None else OwnConnections(door, replace(self._call(context, ""), tool=tool))

    def _call(self, context: CallContext | None, command: str) -> CallUnderWay:
        call_id, events = ("", None) if context is None else (context.call_id, context.get(EVENTS))
        return CallUnderWay(call_id, self.run_id, self.agent, command=command, events=events or discard)


@asynccontextmanager
async def no_network(_sandbox: Sandbox, _context: CallContext | None, _command: str) -> AsyncIterator[Entered]:
    """Let nothing connect."""
    yield Entered()


Network = Callable[[Sandbox, CallContext | None, str], AbstractAsyncContextManager[Entered]]
"""ThreadNetwork.entered, or no_network."""
