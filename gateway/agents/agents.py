"""The only place where settings become capabilities, in a fixed order whatever an agent's YAML says.

Every agent has the eviction of large results, a flow, and the limits of its tenant's policy; the tool path adds journal
and policy (gateway.tool_calls.tool_calls). An agent's settings can neither remove nor reorder these.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from agent.capabilities.attachments import attachments
from agent.capabilities.bash import bash
from agent.capabilities.filesystem import filesystem
from agent.capabilities.flow import flow
from agent.capabilities.limits import limits
from agent.capabilities.memory import memory
from agent.capabilities.metadata import metadata
from agent.capabilities.python import TOOL as PYTHON
from agent.capabilities.python import PythonShell, python
from agent.capabilities.self_critique import self_critique
from agent.capabilities.skills import skills
from agent.capabilities.structured_output import structured_output
from agent.capabilities.summarization import summarization
from agent.capabilities.todos import todos
from agent.capabilities.tool_registry import tool_registry
from agent.capabilities.tracing import Recorder, tracing
from agent.filesystem import FileSystem, Shell
from agent.models.model import Model
from agent.subagents.capability import Subagent, subagents
from agent.tools.eviction import Eviction, EvictionHook
from agent.tools.tool import Capability
from gateway.config.agent_settings import (
    AgentSettings,
    BashSettings,
    CapabilitiesSettings,
    PythonSettings,
    SubagentsSettings,
)
from gateway.config.command_policy import command_policy
from gateway.config.config import Config
from gateway.config.mcp_settings import McpSettings
from gateway.config.model_settings import ModelSettings
from gateway.config.network_settings import CredentialSettings
from gateway.errors import Misconfigured
from gateway.policy import PolicyDocument
from gateway.support.hosts import canonical_host

# The time limit of a command, unless the call, the agent or a shorter policy limit sets one.
_TIMEOUT_S = 120.0
_MIB = 1024 * 1024
_CONTEXT_WINDOW_TOKENS, _FORCED_CONTINUATIONS = 128_000, 5

ModelOf = Callable[[ModelSettings], Model]


class Workspace(FileSystem, Shell, PythonShell, Protocol):
    """A thread's files, shell and Python interpreters."""


def service_tools(
    document: PolicyDocument, sandbox: Workspace, *, connects: bool = False, runs_python: bool = False
) -> tuple[Capability, ...]:
    """Return the file tools and execute, for services with their own agent loop; with `runs_python` execute_python.

    `connects` says whether the policy lets commands connect to some host, for the description of execute.
    """
    tools = (_files(document, sandbox), _shell(BashSettings(), document, sandbox, connects))
    return (*tools, _python(PythonSettings(), document, sandbox)) if runs_python else tools


def build(
    agent: AgentSettings,
    usual_model: ModelSettings,
    document: PolicyDocument,
    sandbox: Workspace,
    model_of: ModelOf,
    recorder: Recorder | None = None,
    *,
    connects: bool = False,
) -> tuple[Capability, ...]:
    """Return an agent's capabilities; an agent without a model in its settings uses the `usual_model`.

    The models in its settings are complete (AgentSettings.within). `connects` is as for service_tools.
    """
    asked = agent.capabilities
    own_model = agent.model or usual_model
    model = model_of(own_model)
    files = _files(document, sandbox)
    if asked.filesystem is None:
        files = Capability("eviction", hooks=[hook for hook in files.hooks if isinstance(hook, EvictionHook)])
    built = [files]
    window = own_model.context_window_tokens or _CONTEXT_WINDOW_TOKENS
    makers: dict[str, Callable[[Any], Capability]] = {
        "bash": lambda own: _shell(own, document, sandbox, connects),
        "python": lambda own: _python(own, document, sandbox, shows_images=asked.attachments is not None),
        "todos": lambda _: todos(),
        "metadata": lambda _: metadata(),
        "memory": lambda own: memory(sandbox, own.paths),
        "skills": lambda own: skills(sandbox, own.paths),
        "attachments": lambda own: attachments(
            sandbox,
            file_limit_bytes=own.file_mib * _MIB,
            limit=own.shown,
            limit_bytes=own.shown_mib * _MIB,
        ),
        "summarization": lambda own: summarization(
            model, sandbox, context_window_tokens=own.context_window_tokens or window
        ),
        "structured_output": lambda own: structured_output(own.schema_, retries=own.retries),
        "self_critique": lambda own: self_critique(model, rounds=own.rounds, criteria=own.criteria),
        "subagents": lambda own: _subagents(own, model, model_of),
        "tool_registry": lambda own: tool_registry(always=own.always),
        "tracing": lambda _: tracing(recorder),
    }
    built += [make(getattr(asked, name)) for name, make in makers.items() if getattr(asked, name) is not None]
    return (*built, flow(**asked.flow.model_dump()), _limits(document, asked))


def check(agent: AgentSettings, usual_model: ModelSettings, document: PolicyDocument) -> None:
    """Build an agent that does not run; Misconfigured names the field and what it needs."""
    try:
        # Nothing uses the sandbox or the model before a run begins.
        built = build(agent, usual_model, document, cast(Workspace, None), lambda _: cast(Model, None))
    except ValueError as error:
        raise Misconfigured(f"capabilities: {error}") from error
    known = [tool for capability in built for tool in capability.tools]
    tools, shareable = [tool.name for tool in known], [tool.name for tool in known if not tool.own_state]
    asked = agent.capabilities
    definitions = asked.subagents.definitions if asked.subagents is not None else {}
    for name, definition in definitions.items():
        named = _own(definition.tools or (), agent.mcp)
        _known(f"capabilities.subagents.definitions.{name}.tools", named, shareable)
    if asked.tool_registry is not None:
        _known("capabilities.tool_registry.always", _own(asked.tool_registry.always, agent.mcp), tools)
    _priced(agent, usual_model, document)


def _own(named: Sequence[str], mcp: McpSettings) -> Sequence[str]:
    """Return the tools that are not those of an MCP server, which are known once it was started."""
    return [name for name in named if name.partition("/")[0] not in mcp.servers or "/" not in name]


def _known(field: str, named: Sequence[str], tools: Sequence[str]) -> None:
    for name in named:
        if name not in tools:
            raise Misconfigured(f"{field}: unknown tool {name!r}; available: {', '.join(tools) or 'none'}")


def _priced(agent: AgentSettings, usual_model: ModelSettings, document: PolicyDocument) -> None:
    """Refuse a cost limit on a model without known prices: it would have no effect."""
    asked = agent.capabilities.subagents
    definitions = asked.definitions if asked is not None else {}
    limited = document.limits.cost_usd is not None or document.quotas.cost_usd_per_day is not None
    own = agent.model or usual_model
    models = {"model": (own, limited or any(one.cost_usd is not None for one in definitions.values()))}
    for name, definition in definitions.items():
        named = f"capabilities.subagents.definitions.{name}.model"
        models[named] = (definition.model or own, limited or definition.cost_usd is not None)
    for field, (model, is_limited) in models.items():
        for one in model.in_order(field):
            if is_limited and not one.priced:
                raise Misconfigured(
                    f"{field}: money is limited, by the policy or a subagent's settings, and what the model "
                    f"{one.resolved_name()!r} costs is not known: set input_usd_per_mtok and output_usd_per_mtok"
                )


def _files(document: PolicyDocument, sandbox: Workspace) -> Capability:
    per_tool = {tool: _sizes(document, tool) for tool in document.eviction.tools}
    return filesystem(sandbox, eviction=_sizes(document), eviction_per_tool=per_tool)


def _shell(asked: BashSettings, document: PolicyDocument, sandbox: Workspace, connects: bool) -> Capability:
    limit_s = document.limits.timeout_s
    return bash(
        sandbox,
        eviction=_sizes(document, "execute"),
        timeout_s=min(asked.timeout_s or _TIMEOUT_S, limit_s),
        max_timeout_s=limit_s,
        command_policy=command_policy(asked),
        network="proxy" if connects else "none",
    )


def _python(
    asked: PythonSettings, document: PolicyDocument, sandbox: Workspace, *, shows_images: bool = True
) -> Capability:
    limit_s = document.limits.timeout_s
    return python(
        sandbox,
        eviction=_sizes(document, PYTHON),
        timeout_s=min(asked.timeout_s or _TIMEOUT_S, limit_s),
        max_timeout_s=limit_s,
        shows_images=shows_images,
    )


def _sizes(document: PolicyDocument, tool: str = "") -> Eviction:
    """Return the eviction sizes of one tool, or of all tools without their own."""
    kept = document.eviction.sizes(tool)
    return Eviction(kept.limit_chars, kept.head_chars, kept.tail_chars)


def _subagents(asked: SubagentsSettings, model: Model, model_of: ModelOf) -> Capability:
    definitions = {}
    for name, definition in asked.definitions.items():
        own_model = model_of(definition.model) if definition.model is not None else None
        definitions[name] = Subagent(**definition.model_dump(exclude={"model"}), model=own_model)
    return subagents(definitions, model, depth=asked.depth)


def _limits(document: PolicyDocument, asked: CapabilitiesSettings) -> Capability:
    allowed = document.limits
    retries = asked.structured_output.retries if asked.structured_output is not None else 0
    rounds = asked.self_critique.rounds if asked.self_critique is not None else 0
    return limits(
        steps=allowed.steps,
        output_tokens=allowed.output_tokens,
        execution_time_s=allowed.run_s,
        tool_calls=allowed.tool_calls,
        cost_usd=allowed.cost_usd,
        # Continuations that the agent's own settings require must not stop it.
        forced_continuations=max(_FORCED_CONTINUATIONS, retries + rounds),
    )


def agents_of_all(config: Config) -> Mapping[str, Mapping[str, AgentSettings]]:
    """Return each tenant's agents. A bad one is reported now, not when a run names it.

    What depends on a tenant's policy is checked with the policy. Tenants without settings of their own share theirs.
    """
    shared: Mapping[str, AgentSettings] = {}
    found: dict[str, Mapping[str, AgentSettings]] = {}
    for name, settings in config.tenants.items():
        plain = settings.model is None and not settings.agents
        found[name] = (plain and shared) or _agents(config, name, config.model_of(name))
        shared = found[name] if plain else shared
    return found


def _agents(config: Config, tenant: str, model: ModelSettings) -> Mapping[str, AgentSettings]:
    agents: dict[str, AgentSettings] = {}

    def whole(name: str, agent: AgentSettings) -> None:
        agents[name] = agent.within(model)
        check(agents[name], model, PolicyDocument(version=1))
        _check_credentials(name, agent.mcp, config.tenants[tenant].credentials)

    each_agent(config, tenant, config.agents_of(tenant), whole)
    return agents


def _check_credentials(agent: str, mcp: McpSettings, credentials: Sequence[CredentialSettings]) -> None:
    """Refuse a server with a credential that would never reach it."""
    known = {one.name: one for one in credentials}
    for server, settings in mcp.servers.items():
        if settings.credential is None:
            continue
        field = f"mcp.servers.{server}.credential"
        one = known.get(settings.credential)
        if one is None:
            raise Misconfigured(
                f"{field}: the tenant has no credential {settings.credential!r}; add it to `credentials`"
            )
        parts = urlsplit(settings.url or "")
        place = (canonical_host(parts.hostname or ""), parts.port or (443 if parts.scheme == "https" else 80))
        if parts.scheme != one.scheme or place not in one.places:
            raise Misconfigured(f"{field}: the credential {one.name} is not for {settings.url}; name it in its `hosts`")
        if one.agents and agent not in one.agents:
            raise Misconfigured(f"{field}: the credential {one.name} is not for agent {agent}; add it to its `agents`")


def each_agent(
    config: Config, tenant: str, agents: Mapping[str, AgentSettings], look: Callable[[str, AgentSettings], None]
) -> None:
    """Check each agent of a tenant; Misconfigured lists what is wrong with all of them, and where."""
    problems = []
    for name, agent in agents.items():
        try:
            look(name, agent)
        except Misconfigured as error:
            own = name in config.tenants[tenant].agents
            where = f"tenants.{tenant}.agents" if own else f"for tenant {tenant}: agents"
            problems.append(f"{where}.{name}.{error}")
    if problems:
        raise Misconfigured("; ".join(problems))
