"""The path of a tool call: judged, executed, shown. The loop and the gateway's CallTool both use it.

prepare           validates, encodes and digests a call; one that cannot run is judged too, for the record
before_tool_use   in call order; a call whose arguments a hook rewrites is prepared again; last, policy judges it
approval          of calls that are asked about; while one waits, no call of the step executes (agent.tools.approval)
execution         allowed calls concurrently (bounded), inside the rings; no call runs with other arguments than judged
after_tool_use    in call order, for blocked calls too
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.cancellation import Cancellation, TimeLeft, to_the_end
from agent.errors import HookFailed, Withheld
from agent.events import EventSink, discard
from agent.filesystem import OnOutput
from agent.frozen import frozen_arguments
from agent.hooks.engine import HookEngine, withheld
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.state import AgentState, ToolExecution, Verdict, VerdictKind
from agent.tool_call import CallContext, JudgedCall
from agent.tools.approval import Approver, Suspended, answered, blocked_result
from agent.tools.call_events import (
    EVENTS,
    LiveOutput,
    OutputEvents,
    emit_finished,
    emit_started,
    emit_verdict,
    output_filters,
)
from agent.tools.recovery import EarlierCall
from agent.tools.tool import RunInFlight, ToolContext, ToolExecutor

_NO_CONTEXT = CallContext()
OUT_OF_TIME = ToolResult.error("the call was cancelled: the run's time is over", outcome="cancelled")


@dataclass(frozen=True)
class ToolRunner:
    """Runs the tool calls of one step, or one call of a service.

    Without an approver a call that needs an approval is blocked. `on_output` gets the bytes of live output. Without it,
    and without a sink for events, a program's output comes with its result only. Calls end when no time is left.
    """

    hooks: HookEngine
    executor: ToolExecutor
    events: EventSink
    clock: Callable[[], float] = time.monotonic
    concurrency: int = 8
    approver: Approver | None = None
    on_output: OnOutput | None = None
    left_s: Callable[[], float] = lambda: math.inf

    async def run(
        self,
        state: AgentState,
        calls: Sequence[ToolCall],
        *,
        keep: Callable[[AgentState], None] | None = None,
        suspend: bool = False,
        earlier: Mapping[str, EarlierCall] | None = None,
        context: CallContext = _NO_CONTEXT,
    ) -> AgentState:
        """Return the state with one finished execution per call, in call order, in state.current.tool_executions.

        Calls that wait for an approval raise Suspended with `suspend`, before any call of the step executes; without it
        they end with the outcome "waiting". A call in `earlier` ran in a process that was lost: it is not judged or run
        again; None for a step that is new. `context` is what is known of all calls, each of which gets one of its own.
        Otherwise only cancellation is raised: then every call in flight has ended, after_tool_use has seen all that
        began, and `keep` has the state.
        """
        executions = tuple(
            ToolExecution(
                call, judged.call, judged, context=context.of_call(call_id=call.id, resumed=earlier is not None)
            )
            for call, judged in ((call, self.executor.prepare(call)) for call in map(_frozen, calls))
        )
        state = state.with_current(tool_executions=executions)
        results: list[tuple[ToolResult, float] | None] = [None] * len(calls)
        judged: list[JudgedCall | None] = [None] * len(calls)
        begun = 0
        try:
            for index in range(len(calls)):
                begun = index + 1
                known = (earlier or {}).get(calls[index].id)
                if known is not None:
                    state, results[index] = self._recalled(state, index, known), (known.result, known.duration_s)
                    continue
                state, judged[index], refusal = await self._judge(state, index)
                results[index] = (refusal, 0.0) if refusal is not None else None
            notes: Mapping[int, str] = {}
            if self.approver is not None:
                try:
                    state, refused, notes = await answered(self.approver, state, judged, suspend=suspend)
                except Suspended:
                    self.hooks.suspended(state)
                    raise
                for index, result in refused.items():
                    judged[index], results[index] = None, (result, 0.0)
            started_s = self.clock()
            run = RunInFlight(state, self.events, self.hooks.hooks, self.executor, context)
            await self._execute(judged, results, run)
            _add_notes(results, notes)
            state = state.with_current(tools_s=state.current.tools_s + self.clock() - started_s)
        except asyncio.CancelledError:
            await to_the_end(self._finish_all(state, results[:begun], keep))
            raise
        return await to_the_end(self._finish_all(state, results, keep))

    async def _judge(self, state: AgentState, index: int) -> tuple[AgentState, JudgedCall | None, ToolResult | None]:
        """Run the before pass of one call; return the call to execute, or the result of one that must not."""
        state = state.with_current(tool_index=index)
        call = state.current.tool.call
        emit_started(self.events, call)
        state = await self.hooks.run("before_tool_use", state, self.events, finalise=self._final)
        tool = self._final(state.current.tool)  # of a blocked call, for the record
        verdict = self._settled(tool.verdict, state.depth)
        granted = verdict.policy if verdict.kind is VerdictKind.PROCEED else None
        tool = tool.with_(verdict=verdict, approval_id=granted.approval_id if granted is not None else "")
        emit_verdict(self.events, call, tool.call, verdict)
        unfit = tool.judged.unfit
        refusal = blocked_result(verdict, unfit) if verdict.kind is VerdictKind.BLOCK else unfit
        state = state.with_(current=state.current.with_tool(tool))
        return state, tool.judged if refusal is None else None, refusal

    def _final(self, tool: ToolExecution) -> ToolExecution:
        """Return the execution with its call prepared again where a hook has rewritten it."""
        if tool.call is tool.judged.call:
            return tool
        judged = self.executor.prepare(_frozen(tool.call))
        return tool.with_(call=judged.call, judged=judged)

    def _recalled(self, state: AgentState, index: int, known: EarlierCall) -> AgentState:
        state = state.with_current(tool_index=index)
        tool = state.current.tool
        emit_started(self.events, tool.call)
        emit_verdict(self.events, tool.call, tool.call, known.verdict)
        return state.with_execution(verdict=known.verdict, approval_id=known.approval_id, recalled=True)

    def _settled(self, verdict: Verdict | None, depth: int) -> Verdict:
        """Return the verdict that counts: if there is a policy, a call passes only with its verdict."""
        if verdict is None:
            kind, rule, reason = VerdictKind.PROCEED, "no_policy", "no hook had a say in it"
            if self.hooks.innermost is not None:
                kind, rule, reason = VerdictKind.BLOCK, "no_verdict", "policy gave no verdict"
            return Verdict(kind=kind, hook="tool_runner", rule=rule, reason=reason)
        if verdict.kind is VerdictKind.ASK and self.approver is None:
            why = (
                "a subagent cannot wait for an approval; the agent that it works for has to make this call itself"
                if depth
                else "approval required, but no approver is configured"
            )
            return verdict.with_(kind=VerdictKind.BLOCK, reason=f"{why} ({verdict.reason})")
        return verdict

    async def _execute(
        self, judged: Sequence[JudgedCall | None], results: list[tuple[ToolResult, float] | None], run: RunInFlight
    ) -> None:
        runnable = [(index, call) for index, call in enumerate(judged) if call is not None]

        async def timed(index: int, call: JudgedCall) -> None:
            started_s = self.clock()
            result = await self._execute_one(index, call, run)
            results[index] = (result, self.clock() - started_s)

        if len(runnable) == 1:
            cancellation = await Cancellation.watch()
            await timed(*runnable[0])
            cancellation.heed()
            return
        slots = asyncio.Semaphore(self.concurrency)
        before = predecessors(self.executor.specs(), [None if one is None else one.call for one in judged])
        done = [asyncio.Event() for _ in judged]

        async def one(index: int, call: JudgedCall) -> None:
            try:
                for other in before[index]:
                    await done[other].wait()
                async with slots:
                    await timed(index, call)
            finally:
                done[index].set()

        # When the run is cancelled the group cancels every call in flight and waits for its end.
        async with asyncio.TaskGroup() as group:
            for index, call in runnable:
                group.create_task(one(index, call))

    async def _execute_one(self, index: int, judged: JudgedCall, run: RunInFlight) -> ToolResult:
        call = judged.call
        execution = run.state.current.tool_executions[index]
        execution.context.set(EVENTS, self.events)
        times = 0
        listens = self.on_output is not None or self.events is not discard
        output = OutputEvents(self.events, call.id) if listens else None
        filters = output_filters(self.hooks.hooks) if output is not None else None
        listeners = [one for one in (self.on_output, output) if one is not None]
        shown = LiveOutput(filters, listeners) if filters is not None else None

        async def center(tool: ToolExecution) -> ToolResult:
            nonlocal times
            times += 1
            if tool.judged is not judged or tool.call != call:
                return ToolResult.error(
                    "refused: a ring around this call changed its arguments after they were judged; "
                    "arguments can be rewritten at before_tool_use only"
                )
            if times > 1 and (refusal := await self._refused_again(index, run)) is not None:
                return refusal
            cancellation = await Cancellation.watch()
            try:
                result = OUT_OF_TIME
                if (left_s := self.left_s()) > 0:  # a call that waited for its turn may have none left
                    async with TimeLeft(left_s):
                        context = ToolContext(call.id, shown, run, execution.context)
                        result = await self.executor.execute(judged, context)
                if shown is not None:
                    whole = result.evicted is None and result.outcome in ("exited", "completed", "failed")
                    await shown.end(cut=not whole)
                return result
            except asyncio.CancelledError:
                if cancellation.asked:
                    raise
                return _CANCELLED  # the tool was cancelled from within, not the run
            except GeneratorExit:
                raise
            except Withheld as error:
                return withheld(ToolResult(b"", error.outcome, exit_code=error.exit_code), str(error))
            except BaseException as error:  # an executor must not raise; if it does, only the call fails
                return ToolResult.error(f"the tool failed: {str(error) or type(error).__name__}")

        try:
            return await self.hooks.around_tool_use(center, self.events)(execution)
        except HookFailed as failure:
            return ToolResult.error(f"The result of this call is withheld: {failure}")
        finally:
            if shown is not None:
                await shown.end(cut=True)
            if output is not None:
                output.flush()

    async def _refused_again(self, index: int, run: RunInFlight) -> ToolResult | None:
        """Return why a ring may not execute the call again: the verdict may be another by now."""
        state = run.state.with_current(tool_index=index)
        first = state.current.tool.verdict
        if first is not None and first.kind is VerdictKind.ASK:
            return ToolResult.error("refused: the call was approved once and has executed", outcome="blocked")
        verdict = await self.hooks.judged_again(state, self.events)
        return None if verdict is None or verdict.kind is VerdictKind.PROCEED else blocked_result(verdict)

    async def _finish_all(
        self,
        state: AgentState,
        results: Sequence[tuple[ToolResult, float] | None],
        keep: Callable[[AgentState], None] | None,
    ) -> AgentState:
        """Run the after passes. Hooks such as the audit must see the outcome of every call."""
        for index, result in enumerate(results):
            state = await self._finish(state, index, *(result or (_CANCELLED, 0.0)))
        state = state.with_current(tool_index=None).with_(tool_calls=state.tool_calls + len(results))
        if keep is not None:
            keep(state)
        return state

    async def _finish(self, state: AgentState, index: int, result: ToolResult, duration_s: float) -> AgentState:
        state = state.with_current(tool_index=index).with_execution(result=result, duration_s=duration_s)
        before = state.current.tool
        state = await self.hooks.run("after_tool_use", state, self.events)
        tool = state.current.tool
        if tool.blocked and not before.blocked and tool.verdict is not None:
            # The call did run, so its verdict stands; its result can still be withheld.
            reason = f"rule {tool.verdict.rule} of {tool.verdict.hook}: {tool.verdict.reason}"
            state = state.with_execution(verdict=before.verdict, result=withheld(tool.result, reason))
        tool = state.current.tool
        emit_finished(self.events, tool, tool.result or result)
        return state


_CANCELLED = ToolResult.error("the call was cancelled", outcome="cancelled")


def _frozen(call: ToolCall) -> ToolCall:
    arguments = frozen_arguments(call.arguments)
    return call if arguments is call.arguments else call.with_(arguments=arguments)


def _add_notes(results: list[tuple[ToolResult, float] | None], notes: Mapping[int, str]) -> None:
    for index, note in notes.items():
        ended = results[index]
        if note and ended is not None:
            results[index] = (ended[0].noted(note), ended[1])


def predecessors(specs: Iterable[ToolSpec], calls: Sequence[ToolCall | None]) -> list[list[int]]:
    """Return for each call the earlier ones that it must wait for; a call that is None does not run.

    A call waits for one on the same path if one of the two writes, and a call that may write anywhere waits for each
    that writes. Two that may write anywhere do not wait for each other.
    """
    specs = tuple(specs)
    writers = {spec.name for spec in specs if spec.writes}
    anywhere = {spec.name for spec in specs if spec.writes_anywhere}

    def must_wait(call: ToolCall, other: ToolCall) -> bool:
        writes, other_writes = call.name in writers, other.name in writers
        return (
            (_path(call) is not None and _path(call) == _path(other) and (writes or other_writes))
            or (writes and other.name in anywhere)
            or (other_writes and call.name in anywhere)
        )

    return [
        [
            before
            for before, other in enumerate(calls[:index])
            if call is not None and other is not None and must_wait(call, other)
        ]
        for index, call in enumerate(calls)
    ]


def _path(call: ToolCall) -> str | None:
    path = call.arguments.get("path") if call.arguments is not None else None
    return path if isinstance(path, str) else None
