"""The one way of a tool call, for runs and for services with a loop of their own.

    policy and other hooks -> journal "about to execute" -> sandbox -> journal the outcome -> after hooks -> result

`ToolPath` is that way laid out for one thread: the hooks that nobody can take out, and the tools over its sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

from pydantic import JsonValue

from agent.capability import Capability
from agent.events import discard
from agent.filesystem import OnOutput
from agent.hook import Hook
from agent.hook_engine import HookEngine
from agent.messages import ToolCall
from agent.models.argument_text import ArgumentReader
from agent.state import AgentState, ToolExecution
from agent.tool import ToolContext, ToolExecutor, ToolResult, ToolSpec
from agent.tool_runner import ToolRunner
from agent.toolbox import Toolbox
from gateway.agents import seven_tools
from gateway.clock import MakeId, make_id
from gateway.errors import InvalidArgument
from gateway.journal import JournalHook
from gateway.policy import PolicyHook
from gateway.storage.store import Store, Thread
from gateway.tenants import Tenant
from gateway.thread_sandbox import ThreadSandbox
from sandbox.sandbox_keeper import SandboxKeeper

_THREAD_LIMIT_CHARS = 256
_NAME_LIMIT_CHARS = 128
# Threads whose way stays laid, and whose id is remembered; the one that was used longest ago is forgotten first.
_THREADS_LIMIT = 4096


@dataclass(frozen=True)
class ToolPath:
    """The way of a tool call in one thread. The mandatory hooks are in `hooks`; no request can take one out.

    `capabilities` are for calls that belong to no run; an agent brings its own (gateway.agents).
    """

    thread: Thread
    sandbox: ThreadSandbox
    hooks: Sequence[Hook]
    capabilities: Sequence[Capability]

    @cached_property
    def hook_engine(self) -> HookEngine:
        """The hooks, ready to run."""
        return HookEngine([*self.hooks, *(hook for capability in self.capabilities for hook in capability.hooks)])

    @cached_property
    def toolbox(self) -> Toolbox:
        """The tools, ready to run."""
        return Toolbox([tool for capability in self.capabilities for tool in capability.tools])


@dataclass(frozen=True)
class FinishedToolCall:
    """A tool call that is over."""

    thread: str
    execution: ToolExecution
    result: ToolResult
    duration_s: float


class ToolCalls:
    """Lays tool paths and sends calls down them."""

    def __init__(self, store: Store, keeper: SandboxKeeper, ids: MakeId = make_id) -> None:
        self._store = store
        self._keeper = keeper
        self._ids = ids
        self._threads: dict[tuple[str, str], Thread] = {}
        self._tool_paths: dict[str, ToolPath] = {}

    async def thread(self, tenant: Tenant, name: str) -> Thread:
        """Return a thread, made on first use; an empty name means "default"."""
        name = name or "default"
        if len(name) > _THREAD_LIMIT_CHARS or not name.isprintable():
            raise InvalidArgument(f"thread: {_THREAD_LIMIT_CHARS} printable characters at most")
        key = (tenant.name, name)
        thread = self._threads.pop(key, None) or await self._store.thread(*key)
        self._threads[key] = thread
        if len(self._threads) > _THREADS_LIMIT:
            del self._threads[next(iter(self._threads))]
        return thread

    def tool_path(self, tenant: Tenant, thread: Thread, run_id: str | None = None) -> ToolPath:
        """Lay the way of a tool call for a thread."""
        sandbox = ThreadSandbox(self._keeper, tenant.sandbox_spec(thread.name))
        return ToolPath(
            thread=thread,
            sandbox=sandbox,
            hooks=(
                JournalHook(self._store, thread, tenant.policy.version, run_id),
                PolicyHook(tenant.policy),
            ),
            capabilities=seven_tools(tenant.policy.document, sandbox),
        )

    async def call(
        self,
        tenant: Tenant,
        thread_name: str,
        name: str,
        arguments: str | Mapping[str, JsonValue],
        *,
        on_output: OnOutput | None = None,
        executor: Callable[[ThreadSandbox], ToolExecutor] | None = None,
    ) -> FinishedToolCall:
        """Send one call down the way; `executor` stands in for the tools when bytes are streamed.

        `arguments` are JSON text, which is bounded here, or a mapping that a service made and has bounded itself.
        """
        started = perf_counter()
        if not name or len(name) > _NAME_LIMIT_CHARS:
            raise InvalidArgument(f"name: the name of a tool, {_NAME_LIMIT_CHARS} characters at most")
        tool_path = await self._tool_path(tenant, thread_name)
        tools = tool_path.toolbox if executor is None else executor(tool_path.sandbox)
        if on_output is not None:
            tools = _Overheard(tools, on_output)
        runner = ToolRunner(tool_path.hook_engine, tools, discard)
        id_ = self._ids("call")
        if isinstance(arguments, str):
            call = ArgumentReader().call(id_, name, arguments)
        else:
            call = ToolCall(id=id_, name=name, arguments=dict(arguments))
        state = await runner.run(AgentState(run_id=call.id, thread=tool_path.thread.name), [call])
        execution = state.current.tool_executions[0]
        result = execution.result or ToolResult.error("the call ended without a result")
        return FinishedToolCall(tool_path.thread.name, execution, result, perf_counter() - started)

    async def sandbox(self, tenant: Tenant, thread_name: str) -> ThreadSandbox:
        """Return a thread's sandbox, for looking after what judged calls have started in it."""
        return (await self._tool_path(tenant, thread_name)).sandbox

    def specs(self, tenant: Tenant) -> Sequence[ToolSpec]:
        """Return the tools of a tenant's threads; no sandbox is made for it."""
        return self.tool_path(tenant, Thread(id="", tenant=tenant.name, name="")).toolbox.specs()

    async def _tool_path(self, tenant: Tenant, thread_name: str) -> ToolPath:
        """Return the way for calls that belong to no run, laid once for a thread that is in use."""
        thread = await self.thread(tenant, thread_name)
        found = self._tool_paths.pop(thread.id, None) or self.tool_path(tenant, thread)
        self._tool_paths[thread.id] = found
        if len(self._tool_paths) > _THREADS_LIMIT:
            del self._tool_paths[next(iter(self._tool_paths))]
        return found


class _Overheard:
    """A ToolExecutor whose output also goes, as bytes, to somebody who listens."""

    def __init__(self, inner: ToolExecutor, on_output: OnOutput) -> None:
        self._inner = inner
        self._on_output = on_output
        self.specs = inner.specs
        self.check = inner.check
        self.normalised = inner.normalised

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Run the call; the runner's own listener is not needed, for nobody watches its events.

        The runner has none where a hook redacts, and then nobody listens.
        """
        heard = None if context.on_output is None else self._on_output
        return await self._inner.execute(call, replace(context, on_output=heard))
