"""The path of every tool call, of runs and of services.

    policy and other hooks -> journal "about to execute" -> sandbox -> journal the outcome -> after hooks -> result

`ToolPath` is the path for one thread: the mandatory hooks, and the tools over its sandbox.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from time import monotonic
from typing import Protocol

import structlog
from pydantic import JsonValue

from agent.cancellation import to_the_end
from agent.events import discard
from agent.filesystem import OnOutput
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook
from agent.messages import ToolCall, ToolResult, ToolSpec
from agent.state import AgentState, ToolExecution
from agent.tool_call import CallContext, JudgedCall
from agent.tools.intake import ArgumentReader
from agent.tools.runner import ToolRunner
from agent.tools.tool import Capability, ToolExecutor
from agent.tools.toolbox import Toolbox
from gateway.agents.agents import Workspace, service_tools
from gateway.approvals.approver import GrantHook, ThreadApprover, load_grants
from gateway.errors import ApprovalPending, InvalidArgument, Unavailable, Unrecorded
from gateway.identity.principal import PRINCIPAL, Principal
from gateway.network.door import Doors, Network, ThreadNetwork, no_network
from gateway.policy.decision import Facts
from gateway.redaction.hooks import redaction_hooks
from gateway.redaction.redactor import NO_SECRETS, Redactor
from gateway.storage.approval_store import APPROVED, ApprovalStore
from gateway.storage.audit_store import AuditEntry
from gateway.storage.entities import Thread
from gateway.storage.store import Store
from gateway.support.clock import make_id, now_us
from gateway.support.heavy_work import HeavyWork
from gateway.telemetry.hook import TelemetryHook
from gateway.telemetry.telemetry import Telemetry
from gateway.tenancy.quotas import Quotas
from gateway.tenancy.tenants import Tenant
from gateway.tool_calls.journal import JournalHook
from gateway.tool_calls.outcome_retry_queue import UNRECORDED, OutcomeRetryQueue, UnrecordedCall
from gateway.tool_calls.policy_hook import PolicyHook
from gateway.tool_calls.program_check import ProgramCheck
from gateway.tool_calls.quota_hook import REFUSED, QuotaHook
from gateway.tool_calls.redacted_workspace import ProcessReader, RedactedWorkspace
from gateway.tool_calls.service_executor import EXECUTOR, ServiceExecutor
from gateway.tool_calls.shown_files_hook import ShownFilesHook
from gateway.tool_calls.thread_sandbox import ThreadEngines, ThreadSandbox
from gateway.tool_calls.tool_request import REQUEST, ToolRequest
from sandbox.keeper.leases import Leases
from sandbox.sandbox import Sandbox

_NO_TELEMETRY = Telemetry.off()
_ANYBODY = Principal(None)
_THREAD_LIMIT_CHARS = 256
_NAME_LIMIT_CHARS = 128
# The caches of threads and of their paths: least recently used entries go first.
_THREADS_LIMIT = 4096
# A thread's id is looked up again after this time: another gateway may have deleted the thread.
_THREAD_KNOWN_S = 2.0


@dataclass(frozen=True)
class ToolPath:
    """The path of a tool call in one thread. No request can remove one of `hooks`.

    `capabilities` are for calls that belong to no run, so they are built on first use; an agent has its own
    (gateway.agents.agents).
    """

    thread: Thread
    sandbox: ThreadSandbox
    workspace: Workspace
    hooks: Sequence[Hook]
    build_capabilities: Callable[[], Sequence[Capability]]
    journal: JournalHook
    approver: ThreadApprover
    quota: QuotaHook
    context: CallContext
    policy_version: str = ""
    redactor: Redactor = NO_SECRETS

    @cached_property
    def capabilities(self) -> Sequence[Capability]:
        return self.build_capabilities()

    @cached_property
    def hook_engine(self) -> HookEngine:
        return HookEngine([*self.hooks, *(hook for capability in self.capabilities for hook in capability.hooks)])

    @cached_property
    def toolbox(self) -> Toolbox:
        return Toolbox([tool for capability in self.capabilities for tool in capability.tools])


@dataclass(frozen=True)
class NewCall:
    """A tool call of a service.

    `arguments` are JSON text, which is bounded here, or a mapping that the service made and has bounded itself. If
    `executor` is set, it runs the call in place of the tools; it streams bytes past the result. A call
    that is `past_stored` is made even when the tenant's stored bytes are used up, as long as the reserve lasts. `agent`
    is the one that the call is made for, "" for none.
    """

    thread: str
    name: str
    arguments: str | Mapping[str, JsonValue]
    on_output: OnOutput | None = None
    executor: ServiceExecutor | None = None
    request: ToolRequest | None = None
    past_stored: bool = False
    agent: str = ""

    def tool_call(self, id_: str) -> ToolCall:
        """Return the call with its id, as a model would have made it."""
        if isinstance(self.arguments, str):
            return ArgumentReader().call(id_, self.name, self.arguments)
        return ToolCall(id=id_, name=self.name, arguments=dict(self.arguments))


@dataclass(frozen=True)
class FinishedToolCall:
    """A tool call that is over. `edited_arguments`, JSON, is set if an approver wants the call made with these."""

    thread: str
    execution: ToolExecution
    result: ToolResult
    duration_s: float
    edited_arguments: str = ""

    def raise_waiting(self) -> None:
        """Raise ApprovalPending if the call waits for an approval."""
        if self.execution.waiting:
            verdict = self.execution.verdict
            why = f"{verdict.reason} (rule {verdict.rule})" if verdict else "the policy asks"
            approval_id = self.execution.approval_id
            raise ApprovalPending(
                f"this call waits for approval {approval_id}: {why}. Repeat it once the approval is granted",
                approval_id=approval_id,
            )


class ServerTools(Protocol):
    """The tools of MCP servers, for calls that belong to no run."""

    async def toolbox(self, tenant: Tenant, path: ToolPath, name: str) -> Toolbox | None: ...
    async def specs(self, tenant: Tenant, path: ToolPath) -> Sequence[ToolSpec]: ...


@dataclass(eq=False)
class ToolCalls:
    """Makes tool paths and runs the calls of services.

    Without `engines` every thread's files are taken to be here; without `doors` sandboxes have no network. `at_hand`
    returns a tenant's sandbox for a thread if this process has it.
    """

    store: Store
    leases: Leases
    _: KW_ONLY
    approvals: ApprovalStore
    quotas: Quotas
    heavy_work: HeavyWork
    telemetry: Telemetry = _NO_TELEMETRY
    engines: ThreadEngines | None = None
    doors: Doors | None = None
    late: OutcomeRetryQueue = field(default_factory=OutcomeRetryQueue)
    at_hand: Callable[[str, str], Sandbox | None] = lambda _tenant, _thread: None
    server_tools: ServerTools | None = None
    _programs: ProgramCheck = field(default_factory=ProgramCheck)
    _threads: dict[tuple[str, str], tuple[Thread, float]] = field(default_factory=dict)
    _tool_paths: dict[str, ToolPath] = field(default_factory=dict)

    async def thread(self, tenant: Tenant, name: str) -> Thread:
        """Return a thread, made on first use; an empty name is "default".

        Raises OtherEngine if its files are on another, NotFound if it is not there and this caller makes none.
        """
        name = name or "default"
        if len(name) > _THREAD_LIMIT_CHARS or not name.isprintable():
            raise InvalidArgument(f"thread: {_THREAD_LIMIT_CHARS} printable characters at most")
        key = (tenant.name, name)
        thread, looked_s = self._threads.pop(key, (None, 0.0))
        if thread is None or monotonic() - looked_s > _THREAD_KNOWN_S:
            limit = tenant.policy.document.quotas.threads
            make = PRINCIPAL.get(_ANYBODY).makes_threads
            thread, looked_s = await self.store.thread(*key, limit=limit, make=make), monotonic()
        if self.engines is not None:
            await self.engines.refuse_other(thread)
        self._threads[key] = (thread, looked_s)
        if len(self._threads) > _THREADS_LIMIT:
            del self._threads[next(iter(self._threads))]
        return thread

    def forget_thread(self, tenant: Tenant, name: str) -> None:
        """Forget a deleted thread: the next call in a thread of its name makes a new one."""
        self._threads.pop((tenant.name, name), None)

    def tool_path(self, tenant: Tenant, thread: Thread, run_id: str | None = None, agent: str = "") -> ToolPath:
        spec = tenant.sandbox_spec(thread.name)
        claim = None if self.engines is None else partial(self.engines.claim, thread)
        network: Network = no_network
        if self.doors is not None:
            network = ThreadNetwork(self.doors, thread, lambda: tenant.policy, run_id or "", agent).entered
        sandbox = ThreadSandbox(self.leases, spec, lambda: tenant.policy, claim, self._programs, network)
        document = tenant.policy.document
        work = self.heavy_work.of(thread.tenant)
        redactor = Redactor(document.redaction, work)
        workspace = sandbox if redactor.idle else RedactedWorkspace(sandbox, redactor)
        approvals, telemetry = self.approvals, self.telemetry
        facts = Facts(tenant=tenant.name, thread=thread.name, run_id=run_id or "", agent=agent)
        quota = QuotaHook(self.quotas, tenant.name, lambda: tenant.policy.document.quotas)
        at_hand = partial(self.at_hand, tenant.name, thread.name)
        journal = JournalHook(self.store, thread, lambda: tenant.policy.version, redactor, self.late, at_hand)
        return ToolPath(
            thread=thread,
            sandbox=sandbox,
            workspace=workspace,
            redactor=redactor,
            hooks=(
                *((TelemetryHook(telemetry, thread.tenant, thread.name, run_id, redactor),) if telemetry.on else ()),
                quota,
                journal,
                *redaction_hooks(document, redactor, sandbox),
                ShownFilesHook(lambda: tenant.policy, facts),
                GrantHook(approvals, thread, run_id),
                PolicyHook(
                    lambda: tenant.policy,
                    facts,
                    partial(load_grants, approvals, thread, run_id, work),
                    quota.take,
                    work,
                ),
            ),
            build_capabilities=partial(
                service_tools,
                document,
                workspace,
                connects=tenant.policy.connects,
                runs_python=tenant.policy.runs_python,
            ),
            policy_version=tenant.policy.version,
            approver=ThreadApprover(approvals, thread, run_id, lambda: tenant.policy, facts, redactor),
            quota=quota,
            context=CallContext(tenant.name, thread.name, run_id or ""),
            journal=journal,
        )

    async def call(self, tenant: Tenant, new: NewCall) -> FinishedToolCall:
        """Run one call. Raises QuotaExceeded for a call that would pass later."""
        started_s = monotonic()
        if not new.name or len(new.name) > _NAME_LIMIT_CHARS:
            raise InvalidArgument(f"name: must be the name of a tool, at most {_NAME_LIMIT_CHARS} characters")
        await self.quotas.check_stored(tenant.name, tenant.policy.document.quotas, reserved=new.past_stored)
        tool_path = await self._tool_path(tenant, new.thread, new.agent)
        tools = await self._tools(tenant, tool_path, new)
        if new.executor is not None:
            new.executor.sandbox, new.executor.workspace = tool_path.sandbox, tool_path.workspace
        runner = ToolRunner(tool_path.hook_engine, tools, discard, approver=tool_path.approver, on_output=new.on_output)
        call = new.tool_call(make_id("call"))
        structlog.contextvars.bind_contextvars(thread=tool_path.thread.name, call_id=call.id)
        request_id = new.request.id if new.request is not None else ""
        context = tool_path.context.of_call(request_id=request_id, started_s=started_s)
        if new.request is not None:
            context.set(REQUEST, new.request)
        if new.executor is not None:
            context.set(EXECUTOR, new.executor)
        try:
            state = AgentState(run_id=call.id, thread=tool_path.thread.name)
            state = await runner.run(state, [call], context=context)
        finally:
            if new.executor is not None:
                await to_the_end(tool_path.quota.count_moved(new.executor))
        execution = state.current.tool_executions[0]
        if (refused := execution.context.get(REFUSED)) is not None:
            raise refused
        if (unrecorded := execution.context.get(UNRECORDED)) is not None:
            if unrecorded.erased:  # maybe by another gateway
                self.forget_thread(tenant, tool_path.thread.name)
            raise unrecorded.error()
        result = execution.result or ToolResult.error("the call ended without a result")
        edited = await self._edited(tenant, execution)
        measured_s = new.request.duration_s if new.request is not None else None
        duration_s = measured_s or monotonic() - started_s
        return FinishedToolCall(tool_path.thread.name, execution, result, duration_s, edited)

    async def _tools(self, tenant: Tenant, tool_path: ToolPath, new: NewCall) -> ToolExecutor:
        if new.executor is not None:
            return new.executor
        of_servers = None
        if "/" in new.name and self.server_tools is not None:
            of_servers = await self.server_tools.toolbox(tenant, tool_path, new.name)
        return of_servers or tool_path.toolbox

    async def _edited(self, tenant: Tenant, execution: ToolExecution) -> str:
        """Return the arguments that an approver wants the refused call made with instead."""
        if not (execution.blocked and execution.approval_id):
            return ""
        approval = await self.approvals.get(tenant.name, execution.approval_id)
        return (approval.edited_arguments or "") if approval is not None and approval.status == APPROVED else ""

    def prepare(self, tenant: Tenant, call: ToolCall) -> JudgedCall:
        """Return a call in the form that policy judges; one of an agent's own tools as it is."""
        tools = self.tool_path(tenant, Thread(id="", tenant=tenant.name, name="")).toolbox
        known = call.name in {spec.name for spec in tools.specs()}
        return tools.prepare(call) if known else JudgedCall.of(call)

    async def process_reader(self, tenant: Tenant, thread_name: str) -> ProcessReader:
        tool_path = await self._tool_path(tenant, thread_name)
        return ProcessReader(tool_path.sandbox, tool_path.redactor)

    async def sandbox(self, tenant: Tenant, thread_name: str) -> ThreadSandbox:
        """Return a thread's sandbox, for operations on what judged calls started in it."""
        return (await self._tool_path(tenant, thread_name)).sandbox

    async def take_place(self, tenant: Tenant, *, only_ends: bool = False) -> None:
        """Take a place in the tenant's minute for an operation on what a judged call started; QuotaExceeded.

        As a call, it is refused beyond the tenant's stored bytes, unless it `only_ends` what is there.
        """
        limits = tenant.policy.document.quotas
        if not only_ends:
            await self.quotas.check_stored(tenant.name, limits)
        await self.quotas.take_place(tenant.name, limits)

    async def specs(self, tenant: Tenant) -> Sequence[ToolSpec]:
        """Return the tools of a tenant's threads, without making a sandbox."""
        path = self.tool_path(tenant, Thread(id="", tenant=tenant.name, name=""))
        of_servers = () if self.server_tools is None else await self.server_tools.specs(tenant, path)
        return (*path.toolbox.specs(), *of_servers)

    async def record(self, *entries: AuditEntry) -> None:
        """Append operations on what judged calls started to the audit, before the caller gets the answer.

        Raises Unrecorded if the database fails: the entries follow once it is back, and may be there twice.
        """
        await to_the_end(self._recorded(entries))

    async def _recorded(self, entries: Sequence[AuditEntry]) -> None:
        try:
            await self.store.audit.write(*entries)
        except Unavailable as error:
            at_us = now_us()
            late = [replace(entry, at_us=at_us) for entry in entries]
            unrecorded = UnrecordedCall(make_id("record"), executed=True, said=str(error))
            self.late.add(unrecorded, partial(self.store.audit.write, *late), tenant=entries[0].tenant)
            what = ", ".join(entry.kind.replace("_", " ") for entry in entries)
            raise Unrecorded(
                f"the operation succeeded ({what}), but its record could not be stored and follows as soon as the "
                f"database accepts it: {unrecorded.cause()}"
            ) from error

    async def close(self) -> None:
        """Write outcomes that wait, if the database accepts them by now. Call it when no call is under way."""
        if self.doors is not None:
            await self.doors.close()
        await self.late.close()

    async def _tool_path(self, tenant: Tenant, thread_name: str, agent: str = "") -> ToolPath:
        """Return the path for calls that belong to no run, made once for each thread and version of the policy."""
        thread = await self.thread(tenant, thread_name)
        if agent:
            return self.tool_path(tenant, thread, agent=agent)
        found = self._tool_paths.pop(thread.id, None)
        if found is None or found.policy_version != tenant.policy.version:
            found = self.tool_path(tenant, thread)
        self._tool_paths[thread.id] = found
        if len(self._tool_paths) > _THREADS_LIMIT:
            del self._tool_paths[next(iter(self._tool_paths))]
        return found
