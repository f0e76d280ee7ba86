"""One outgoing connection: its decision, its socket, its limits, and its audit record."""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import structlog
from pydantic import JsonValue

from gateway.errors import Unavailable
from gateway.network.addresses import Denies, Permits, Unreachable, may_be_dialled, resolve
from gateway.network.decision import CallUnderWay, ConnectionPolicy, Target, denied
from gateway.network.http_request import Refused, refusal
from gateway.network.opening import Opening
from gateway.policy.decision import Decision
from gateway.policy.document import NetworkSection
from gateway.policy.judge import Policy
from gateway.storage.audit_store import AuditEntry

CONNECTION = "connection"
"""The kind of the audit record."""
INTERRUPTED = "interrupted"
"""The outcome of a connection whose gateway was lost."""
BYTE_LIMIT = "byte_limit"
"""How a connection ends that has sent or received as much as it may."""
_DENYING = (403, 429, 503)
_REQUESTS_KEPT = 100
"""Different ones of one connection; after more of them it does not outlast a policy."""
log = structlog.get_logger(__name__)


class Ended(Exception):
    """The gateway ends a connection; str() says why, as its record's outcome does."""


@dataclass(eq=False)
class Outgoing:
    """A connection that tool code asked for. `outcome` is how it ended, "" while it is open.

    It is attributed to `call`; any of the `others`, which were under way too, may have made it.
    """

    target: Target
    call: CallUnderWay
    policy: ConnectionPolicy
    on_dialled: Callable[["Outgoing"], None] = lambda _: None
    """Called once it is connected."""
    others: tuple[CallUnderWay, ...] = ()
    started_s: float = field(default_factory=time.monotonic)
    decision: Decision | None = None
    refused: Refused | None = None
    address: str = ""
    credentials: frozenset[str] = frozenset()
    checked_by: Policy | None = None
    """The policy that allows it; None where that is to be asked again."""
    requests: frozenset[Target] | None = frozenset()
    """Those that may be under way on it, where they were judged one by one; None once there are too many to keep."""
    bytes_up: int = 0
    bytes_down: int = 0
    outcome: str = ""

    def __post_init__(self) -> None:
        self.connected_s = self.used_s = self.started_s

    @property
    def limits(self) -> NetworkSection:
        return self.policy.policy().document.network

    async def decide(self, *, asked: bool = False) -> None:
        """Wait until the policy, or an approver, allows it; `asked`: an approver was asked already. Raises Refused."""
        if self.refused is not None:
            raise self.refused
        try:
            self.decision = await self.policy.decided(self.target, self.call, asked=asked)
        except Refused as refused:
            self.refuse(refused)
            raise
        except asyncio.CancelledError:  # while an approver was asked
            self.decision, self.outcome = self.policy.judge(self.target, self.call), "withdrawn"
            raise
        except Exception as error:
            raise self.undecided(error) from error

    def undecided(self, error: Exception) -> Refused:
        """Note that it could not be decided, as when the database does not answer; return what the client gets."""
        self.decision = self.policy.judge(self.target, self.call)
        fault = None if isinstance(error, Unavailable) else error
        log.error("a connection of tool code is not decided", error=str(error), exc_info=fault)
        reason = "the gateway cannot decide about the connection now; try again"
        refused = refusal(503, "failed", reason, self.target)
        self.refuse(refused)
        return refused

    async def dial(self) -> socket.socket:
        """Return the connected socket, which does not block. Raises Refused."""
        try:
            if self.refused is not None:
                raise self.refused
            connected = await self._dialled()
        except Refused as refused:
            self.refuse(refused)
            raise
        self.on_dialled(self)
        return connected

    def refuse(self, refused: Refused) -> None:
        """Note how it ended without any byte."""
        self.refused = refused
        self.outcome = str(refused.body.get("error", "refused"))

    async def _dialled(self) -> socket.socket:
        limits, policy = self.limits, self.policy.policy()
        deadline_s = time.monotonic() + limits.connect_s
        try:
            addresses = await resolve(
                self.target.host,
                self.target.port,
                permits=self._permits(policy),
                denies=self._denies(policy),
                timeout_s=limits.connect_s,
            )
        except Unreachable as error:
            raise self._unreachable(error) from error
        problem: OSError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(max(deadline_s - time.monotonic(), 0)):
                    connected = await _connected(address, self.target.port)
            except (OSError, TimeoutError) as error:
                problem = error
            else:
                self.address, self.checked_by = address, None
                self.connected_s = self.used_s = time.monotonic()
                return connected
        if isinstance(problem, TimeoutError):
            reason = f"{self.target.shown} did not accept a connection within {limits.connect_s:g} s"
            raise refusal(504, "timed_out", reason, self.target)
        said = (problem.strerror if problem is not None else "") or "no answer"
        raise refusal(502, "unreachable", f"{self.target.shown} cannot be reached: {said.lower()}", self.target)

    def _permits(self, policy: Policy) -> Permits:
        return partial(policy.names_address, facts=self.policy.facts(self.call))

    def _denies(self, policy: Policy) -> Denies:
        return partial(policy.denies_address, self.target.host, facts=self.policy.facts(self.call))

    def _unreachable(self, error: Unreachable) -> Refused:
        if error.kind == "denied_address":
            advice = "ask the operator to narrow the addresses of that deny rule, or to except this host with `unless`"
            return denied(self.target, error.rule, str(error), advice=advice)
        if error.kind == "private_address":
            rule = self.decision.rule if self.decision is not None else ""
            advice = "the operator's layer of the policy has to name that very address or network in a connect rule"
            return denied(self.target, rule, str(error), advice=advice)
        status = 504 if error.kind == "timeout" else 502
        return refusal(status, "timed_out" if status == 504 else error.kind, str(error), self.target)

    def count_up(self, size: int) -> None:
        """Count bytes of tool code. Raises Ended over the limit."""
        self._used(self.bytes_up + size, self.limits.bytes_up)
        self.bytes_up += size

    def count_down(self, size: int) -> None:
        """Count bytes for tool code. Raises Ended over the limit."""
        self._used(self.bytes_down + size, self.limits.bytes_down)
        self.bytes_down += size

    def _used(self, size: int, limit: int | None) -> None:
        self.used_s = time.monotonic()
        if limit is not None and size > limit:
            raise Ended(BYTE_LIMIT)

    def overdue(self, now_s: float) -> str:
        """Return why it must end now, "" while it may go on; how long it may wait to be connected is limited there."""
        if not self.address:
            return ""
        limits = self.limits
        if now_s - self.connected_s > limits.total_s:
            return "time_limit"
        return "idle" if now_s - self.used_s > limits.idle_s else ""

    def carries(self, request: "Outgoing", *, alone: bool) -> None:
        """Note a request on it that was allowed; `alone`: those before are over."""
        before = frozenset() if alone else self.requests
        if before is not None:
            kept = before | {request.target}
            self.requests = kept if len(kept) <= _REQUESTS_KEPT else None
        if request.decision is None or request.decision.policy_version != self.policy.policy().version:
            self.checked_by = None  # the policy changed while it was judged

    async def still_allowed(self) -> bool:
        """Return whether the policy in force lets the connection stay; an ask rule does."""
        policy = self.policy.policy()
        if self.checked_by is policy:
            return True
        self.checked_by = policy  # first: a request that comes meanwhile may have it asked again
        if self.address:
            rules = self._permits(policy), self._denies(policy)
            if not may_be_dialled(self.target.host, self.address, self.target.port, *rules):
                return False
        if self.requests is None:
            return self.decision is not None and self.decision.policy_version == policy.version
        for number, request in enumerate(self.requests or {self.target}):
            if number:
                await asyncio.sleep(0)  # a judgement takes about a millisecond: others have their turn
            if self.policy.judge(request, self.call).verdict == "deny":
                return False
        return True

    @property
    def verdict(self) -> str:
        """Allow or deny, as it was decided in the end."""
        refused = self.refused
        if refused is None:
            return "allow" if self.decision is None or self.decision.verdict == "allow" else "deny"
        return "deny" if refused.status in _DENYING and refused.body.get("error") != BYTE_LIMIT else "allow"

    def entry(self) -> AuditEntry:
        """Return its audit record."""
        decision, refused = self.decision, self.refused
        body = {} if refused is None else refused.body
        details: dict[str, JsonValue] = {
            "host": self.target.host,
            "port": self.target.port,
            "address": self.address,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }
        more = {
            "method": self.target.method,
            "credential": ", ".join(sorted(self.credentials)),
            "reason": self.policy.redactor.shown(str(body.get("reason", "")))[:300],
            "agent": self.call.agent,
        }
        details |= {name: value for name, value in more.items() if value}
        thread = self.policy.thread
        return AuditEntry(
            thread.tenant,
            CONNECTION,
            self.call.actor,
            thread=thread.name,
            run_id=self.call.run_id,
            call_id=self.call.call_id,
            tool="connect",
            verdict=self.verdict,
            rule=str(body.get("rule") or (decision.rule if decision is not None else "")),
            policy_version=decision.policy_version if decision is not None else self.policy.policy().version,
            outcome=self.outcome or "completed",
            size_bytes=self.bytes_up + self.bytes_down,
            duration_us=int((time.monotonic() - self.started_s) * 1_000_000),
            details=details,
        )

    def entry_if_lost(self) -> AuditEntry:
        """Return its audit record in case this process is lost before it is over."""
        entry = self.entry()
        unknown: dict[str, JsonValue] = {"bytes_up": None, "bytes_down": None}
        return replace(entry, outcome=INTERRUPTED, size_bytes=0, duration_us=0, details={**entry.details, **unknown})


async def _connected(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connecting = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connecting, (address, port))
    except BaseException:
        connecting.close()
        raise
    return connecting


class Exits(Protocol):
    """Where the connections of a sandbox leave it."""

    @property
    def opening(self) -> Opening:
        """What the tenant's connections are opened with."""

    def outgoing(self, target: Target, task: asyncio.Task[None] | None) -> Outgoing:
        """Return a new connection, which counts from now on. Over a limit it is refused already.

        The task, which serves its client, is cancelled when it must end.
        """

    def request(self, target: Target) -> Outgoing:
        """Return one for a request on an open connection; it counts against no limit."""

    def ended(self, one: Outgoing) -> None:
        """Record one that is over."""
