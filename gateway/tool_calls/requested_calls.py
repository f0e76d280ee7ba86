"""Tool calls with request ids: each executes once, however often it is requested.

    first time                      it runs; what is remembered is written with its outcome
    while it runs, the same gateway waits for the same call
    while it runs, another one      InProgress
    it ran, its outcome unwritten   Unavailable here, InProgress on another gateway
    it could not be recorded        it did not execute, and runs
    later                           the first one's result, byte for byte
    its gateway was lost meanwhile  a result whose outcome is interrupted
    other arguments, same id        RequestIdReused

Such a call outlives its connection for a moment, so that a caller whose connection broke can come back for the result.
It does not outlive the deadline of its last caller; `cancel` and the end of the gateway end it at once.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import JsonValue

from agent.cancellation import ended
from agent.messages import ToolCall, ToolResult
from agent.state import ToolExecution
from agent.tool_call import JudgedCall
from gateway.errors import Cancelled, NotFound
from gateway.storage.call_journal import RequestedCall
from gateway.storage.store import Store
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.outcome_retry_queue import OutcomeRetryQueue
from gateway.tool_calls.program_calls import EndedProgram, Program
from gateway.tool_calls.thread_sandbox import ThreadSandbox
from gateway.tool_calls.tool_calls import FinishedToolCall, NewCall, ToolCalls
from gateway.tool_calls.tool_request import StoredResult, ToolRequest
from sandbox.protocols import Process, ProgramResult

LINGER_S = 3.0
# Calls of one tenant that continue without a caller; one more ends when its caller leaves.
_LINGERING_LIMIT = 32
_LOST = ToolResult.error(
    "the gateway was lost while this call ran: what it had done by then is not known, and it was not run again",
    outcome="interrupted",
)
_PROGRAM_LOST = "the gateway was lost while it ran: what it had done by then is not known, and it was not run again"
_CUT_OFF = "it was killed before it ended, because its caller disconnected; it was not run again"
_ID_CHARS = 32


@dataclass
class _UnderWay:
    digest: str
    task: asyncio.Task[FinishedToolCall]
    callers: int = 0
    # Until when a caller that left may come back, as loop.time().
    wanted_until_s: float = 0.0
    counted: Callable[[], None] | None = None
    ending: asyncio.TimerHandle | None = None

    def stop_lingering(self) -> None:
        """Stop the timer and the count of a call without callers."""
        if self.ending is not None:
            self.ending.cancel()
            self.ending = None
        if self.counted is not None:
            self.counted()
            self.counted = None


@dataclass(eq=False)
class RequestedCalls:
    """The calls with request ids that this process executes, and the stored results of others.

    `lingering` counts a call of a tenant that continues without a caller, and returns what uncounts it.
    """

    tool_calls: ToolCalls
    store: Store
    linger_s: float = LINGER_S
    lingering: Callable[[str], Callable[[], None]] | None = None
    _under_way: dict[tuple[str, str], _UnderWay] = field(default_factory=dict)
    _closing: bool = False

    async def call(
        self, tenant: Tenant, new: NewCall, request_id: str, *, deadline_s: float | None = None
    ) -> FinishedToolCall:
        """Make a call, or return the result of the same request. `deadline_s` is the caller's, as loop.time().

        Raises RequestIdReused, InProgress, and what ToolCalls.call raises.
        """
        if not request_id:
            return await self.tool_calls.call(tenant, new)
        request = ToolRequest.of(request_id, new.thread, new.name, str(new.arguments))
        key = (tenant.name, request_id)
        known = self._under_way.get(key)
        if known is None:
            stored = await self.store.call_of(*key)
            if stored is not None and key not in self._under_way:
                return self._answered(stored, request)
            # No await up to the task: of two concurrent requests the second finds the first's call.
            known = self._under_way.get(key)
            if known is None:
                known = self._begin(key, request, self._made(tenant, request, new))
        request.check_digest(known.digest)
        return await self._result(key, known, deadline_s)

    def cancel(self, tenant: Tenant, request_id: str) -> None:
        """End a call that is under way here; NotFound if there is none, or it is another tenant's."""
        known = self._under_way.get((tenant.name, request_id))
        if known is None:
            raise NotFound(f"no call with the request id {request_id[:64]!r} is running on this gateway")
        known.task.cancel()

    async def close(self) -> None:
        self._closing = True
        await ended(*(known.task for known in self._under_way.values()))

    def _begin(
        self, key: tuple[str, str], request: ToolRequest, work: Coroutine[Any, Any, FinishedToolCall]
    ) -> _UnderWay:
        known = _UnderWay(request.digest, asyncio.create_task(work, name=f"request {request.id}"))
        self._under_way[key] = known

        def over(task: asyncio.Task[FinishedToolCall]) -> None:
            self._under_way.pop(key, None)
            known.stop_lingering()
            if not task.cancelled():
                task.exception()  # retrieved, as there may be no caller left

        known.task.add_done_callback(over)
        return known

    async def _made(self, tenant: Tenant, request: ToolRequest, new: NewCall) -> FinishedToolCall:
        made = await self.tool_calls.call(tenant, replace(new, thread=request.thread, request=request))
        if not request.taken:
            # The journal has written the result, but for one that a hook further out changed or withheld after that.
            execution = made.execution
            if execution.waiting or request.kept is made.result:
                return made
            request.duration_s = made.duration_s  # the same as in a repetition
            result = request.keep(execution)
            if await self.store.remember(tenant.name, execution.call.id, request.id, request.digest, result):
                return made
        stored = await self.store.call_of(tenant.name, request.id)
        if stored is None:
            raise request.in_progress()
        return self._answered(stored, request)

    def _answered(self, stored: RequestedCall, request: ToolRequest) -> FinishedToolCall:
        """Return the answer to a repetition: the remembered result of a call that is over."""
        request.check_ended(stored, self.tool_calls.late)
        call = ToolCall(id=stored.id, name=stored.name, arguments={})
        kept = StoredResult.remembered(stored)
        result = _LOST if kept is None else kept.result()
        execution = ToolExecution(call, call, JudgedCall.of(call), result=result)
        if kept is not None:
            execution = execution.with_(verdict=kept.verdict, duration_s=kept.duration_s, approval_id=kept.approval_id)
        return FinishedToolCall(request.thread, execution, result, execution.duration_s)

    async def _result(self, key: tuple[str, str], known: _UnderWay, deadline_s: float | None) -> FinishedToolCall:
        """Wait for a call with its other callers; when the last one leaves, the call lingers."""
        known.callers += 1
        known.stop_lingering()
        try:
            return await asyncio.shield(known.task)
        except asyncio.CancelledError:
            if known.task.cancelled():  # not this caller: grpc sends no status for its own cancellation
                raise Cancelled("the client cancelled the call, and everything it started was killed") from None
            raise
        finally:
            known.callers -= 1
            # A client that gives up at its deadline resets the RPC, and the reset arrives just before the deadline
            # passes here. Only the deadline distinguishes it from a broken connection.
            back_s = asyncio.get_running_loop().time() + self.linger_s
            known.wanted_until_s = max(known.wanted_until_s, back_s if deadline_s is None else min(back_s, deadline_s))
            if not known.callers and not known.task.done():
                self._leave(key, known)

    def _leave(self, key: tuple[str, str], known: _UnderWay) -> None:
        loop = asyncio.get_running_loop()
        alone = sum(1 for (tenant, _), one in self._under_way.items() if tenant == key[0] and not one.callers)
        if self._closing or alone > _LINGERING_LIMIT or loop.time() >= known.wanted_until_s:
            known.task.cancel()
            return
        # The caller's place is about to be freed, but the work continues and must count.
        known.counted = None if self.lingering is None else self.lingering(key[0])
        known.ending = loop.call_at(known.wanted_until_s, known.task.cancel)


def program_request(
    request_id: str, kind: str, thread: str, program: Program, how: Mapping[str, JsonValue]
) -> ToolRequest | None:
    """Return the request of a program, None if it has no id; `kind` is the RPC, `how` its other fields."""
    if not request_id:
        return None
    content: list[JsonValue] = [list(program.argv), program.cwd, dict(program.env), dict(how)]
    return ToolRequest.of(request_id, thread, kind, json.dumps(content, sort_keys=True))


def made_process_id(tenant: Tenant, request: ToolRequest) -> str:
    """Return the id of a process whose caller gave none: the same for the same request on every gateway."""
    content = json.dumps([tenant.name, request.thread, request.id])
    return f"proc_{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:_ID_CHARS]}"


@dataclass(frozen=True)
class RequestedPrograms:
    """Looks up earlier requests of programs and background processes; `late` has this process' unwritten outcomes.

    What differs from a tool call: such a program ends with its connection, the only reader of its output.

        while it runs, or is started    InProgress
        later, a program                how it ended, without its output
        later, a process                the process as it is now; NotFound once it is gone
        a start that failed             it is started anew
        its gateway was lost meanwhile  a program was interrupted; a process is there, or NotFound
    """

    store: Store
    late: OutcomeRetryQueue

    async def ended(self, tenant: Tenant, request: ToolRequest) -> EndedProgram | None:
        """Return how the program of the same request ended, None if there was none.

        Raises RequestIdReused, and InProgress while it runs.
        """
        stored = await self._earlier(tenant, request)
        if stored is None:
            return None
        remembered = StoredResult.remembered(stored)
        if remembered is None:
            return EndedProgram(stored.id, ProgramResult("interrupted", message=_PROGRAM_LOST))
        if remembered.program is not None:
            return EndedProgram(stored.id, remembered.program)
        said = _CUT_OFF if remembered.outcome == "cancelled" else remembered.content.decode("utf-8", "replace")
        return EndedProgram(stored.id, ProgramResult("cancelled", message=said))

    async def process(
        self, tenant: Tenant, request: ToolRequest, sandbox: ThreadSandbox, process_id: str, argv: Sequence[bytes]
    ) -> Process | None:
        """Return the process that the same request started, None if it is to be started.

        Raises RequestIdReused, InProgress while it is being started, and NotFound where it is gone.
        """
        stored = await self._earlier(tenant, request)
        if stored is None:
            return None
        remembered = StoredResult.remembered(stored)
        failed = remembered is not None and remembered.is_error
        # A start may have failed because another process has the id.
        if not failed or (remembered is not None and remembered.outcome == "cancelled"):
            found = await self.kept(sandbox, process_id, argv)
            if found is not None:
                return found
        if not failed:
            raise NotFound(
                f"request {request.id!r} started the process {process_id}, which no longer exists: it or its "
                "sandbox was removed"
            )
        await self.store.forget(tenant.name, stored.id)
        return None

    async def kept(self, sandbox: ThreadSandbox, process_id: str, argv: Sequence[bytes]) -> Process | None:
        """Return the background process with an id, if it runs this argv, as far as that is known."""
        shown = b"\0".join(argv)
        found = (await sandbox.list_processes()).processes
        return next((one for one in found if one.id == process_id and shown.startswith(b"\0".join(one.argv))), None)

    async def _earlier(self, tenant: Tenant, request: ToolRequest) -> RequestedCall | None:
        stored = await self.store.call_of(tenant.name, request.id)
        if stored is not None:
            request.check_ended(stored, self.late)
        return stored
