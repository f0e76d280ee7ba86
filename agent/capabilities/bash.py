"""The execute tool over a Shell: a command line in the workspace, and the agent's own policy for commands."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, create_model, field_validator

from agent.filesystem import ExecResult, Redacted, Shell, joined
from agent.hooks.hook import Hook, tool_name
from agent.messages import Evicted, ToolResult
from agent.state import AgentState
from agent.tools.eviction import Eviction, marker
from agent.tools.tool import Capability, Tool, ToolArguments, ToolContext

CommandPolicy = Callable[[str], str | None]
"""Returns why a command line must not run, None to allow it. If it raises, the command is blocked."""


@dataclass(eq=False)
class CommandPolicyHook(Hook):
    """Blocks the command lines that the capability's policy refuses, also in subagents."""

    command_policy: CommandPolicy
    name = "bash"
    priority = -900_000  # further in than any hook that may rewrite the command: what is judged is what runs
    mandatory = True
    when = tool_name("execute")

    async def before_tool_use(self, state: AgentState) -> AgentState:
        command = (state.current.tool.call.arguments or {}).get("command")
        if not isinstance(command, str):
            return state.block(self.name, "command_policy", "execute was not judged: command must be text")
        reason = self.command_policy(command)
        if reason is None:
            return state
        return state.block(self.name, "command_policy", reason or "the command policy refuses this command")


class _Command(ToolArguments):
    command: str = Field(min_length=1, description="what /bin/sh -c runs in /workspace")

    @field_validator("command")
    @classmethod
    def _without_nul(cls, command: str) -> str:
        if "\0" in command:
            raise ValueError("must not hold a NUL character")
        return command


_DESCRIPTION = (
    "Run a command line with /bin/sh in /workspace; gives its output and how it ended. Each call is a new shell: files "
    "stay, cd and variables do not. Programs get no input. To keep something running, such as a server, start it with "
    "& and redirect its output to a file: it continues after the call."
)
Network = Literal["none", "proxy"]
"""Whether commands reach nothing, or the hosts that the policy allows, by the proxy that variables name."""
_NETWORKS: Mapping[Network, str] = {
    "none": "There is no network: nothing can be downloaded, and only servers of this sandbox answer, at localhost. "
    "Use what is installed.",
    "proxy": "Network access goes through the proxy in HTTP_PROXY and HTTPS_PROXY. It reaches only the hosts that the "
    "policy allows, and its refusals say why.",
}
# How a program ended, where that is not an exit; "{said}" is the sandbox's message, if any.
_NOTES = {
    "signalled": "killed by signal {signal}{said}",
    "cancelled": "cancelled; everything the command had started was killed{said}",
    "timed_out": "timed out after {timeout_s:g} s; everything the command had started was killed{said}. "
    "Give a larger timeout_s or do less at once",
    "out_of_memory": "killed: the sandbox's memory limit was reached{said}. Use less memory",
    "pids_limit": "the sandbox's limit of processes was reached{said}. Run fewer at once",
    "disk_limit": "killed for its use of disk{said}",
    "failed_to_start": "the command did not start{said}",
}


def bash(
    shell: Shell,
    *,
    eviction: Eviction | None = None,
    timeout_s: float = 120.0,
    max_timeout_s: float = 600.0,
    command_policy: CommandPolicy | None = None,
    network: Network | None = None,
) -> Capability:
    """Return the execute tool over `shell`; a call may set its timeout, up to `max_timeout_s`.

    `command_policy` judges each command in addition to the agent's policy: both must allow it. `network` says which
    network commands have, for the tool's description; None if unknown.
    """
    limits = eviction or Eviction()
    arguments = _arguments(timeout_s, max_timeout_s)

    async def execute(asked: Any, context: ToolContext) -> ToolResult:
        done = await shell.execute(
            asked.command,
            timeout_s=asked.timeout_s,
            call_id=context.call_id,
            **vars(limits),
            on_output=context.on_output,
            context=context.hooks,
        )
        return _result(done, asked.timeout_s)

    description = _DESCRIPTION
    if network is not None:
        description += f" {_NETWORKS[network]}"
    hooks = (CommandPolicyHook(command_policy),) if command_policy is not None else ()
    tool = Tool("execute", description, arguments, execute, writes_anywhere=True)
    return Capability("bash", hooks=hooks, tools=(tool,))


# Typed, because 120 and 120.0 differ in the JSON Schema.
@functools.lru_cache(128, typed=True)
def _arguments(timeout_s: float, max_timeout_s: float) -> type[_Command]:
    """Return the model of the tool's arguments."""
    seconds = "seconds after which everything it started is killed"
    field = Field(timeout_s, gt=0, le=max_timeout_s, description=seconds)
    return create_model("ExecuteArguments", __base__=_Command, timeout_s=(float, field))


def _result(done: ExecResult, timeout_s: float) -> ToolResult:
    pieces = (*done.output, *done.tail)
    content = joined(piece.data for piece in done.output)
    if done.evicted is not None:
        tail = joined(piece.data for piece in done.tail)
        left_out = marker(done.evicted, done.output_bytes - len(content) - len(tail))
        content = joined((content, Redacted(left_out), tail))
    return ToolResult(
        content,
        outcome=done.outcome,
        is_error=done.outcome != "exited" or done.exit_code != 0,
        exit_code=done.exit_code,
        evicted=Evicted.model_validate(done.evicted, from_attributes=True) if done.evicted is not None else None,
        stdout=joined(piece.data for piece in pieces if piece.stream == "stdout"),
        stderr=joined(piece.data for piece in pieces if piece.stream == "stderr"),
        note=_note(done, timeout_s),
    )


def _note(done: ExecResult, timeout_s: float) -> str:
    said = f": {done.message}" if done.message else ""
    if done.outcome == "exited":
        if done.exit_code == 0:
            return f"[{done.message}]" if done.message else ""
        return f"[exit code {done.exit_code}{said}]"
    if done.outcome == "daemon_lost":
        lost = f"the sandbox was lost during the command{said.rstrip('.')}"
        return f"[{lost}. It may have had effects: check before you run it again]"
    note = _NOTES.get(done.outcome, f"{done.outcome}{{said}}")
    return f"[{note.format(said=said, signal=done.signal, timeout_s=timeout_s)}]"
