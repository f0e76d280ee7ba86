"""Agents of the configuration as capabilities: what settings add, and what they can neither remove nor reorder."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, combinations
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue

from agent.agent import Agent
from agent.hooks.engine import HookEngine
from agent.hooks.hook import Hook
from agent.messages import Message, Usage
from agent.models.model import Model
from agent.state import AgentState
from agent.tools.eviction import EvictionHook
from agent.tools.tool import Capability
from gateway.agents.agents import Workspace, build, check, service_tools
from gateway.cli.init import _CONFIG as STARTER_CONFIG
from gateway.config.agent_settings import AgentSettings, CapabilitiesSettings
from gateway.config.config import Config
from gateway.config.model_settings import ModelSettings
from gateway.errors import Misconfigured
from gateway.policy import STARTER_POLICY, Policy, PolicyDocument, PolicyError, load_policy
from gateway.policy.fields import AGENT_TOOLS, CONNECT, EXECUTE_PYTHON, JUDGED_AS, TOOLS
from gateway.runs.checkpoints import ThreadHistoryHook
from gateway.storage.entities import Thread
from gateway.storage.store import Store
from gateway.support.clock import now_us
from gateway.support.heavy_work import HeavyWork
from gateway.tenancy.tenants import Tenant, load_tenants
from gateway.tool_calls.journal import JournalHook
from gateway.tool_calls.policy_hook import PolicyHook
from gateway.tool_calls.tool_calls import ToolCalls
from tests.unit.agent.fakes import FakeExec, FakeFiles, FakePiece, FakeShell, SaysInTurn, call, done, execution_of, says
from tests.unit.gateway.stored_steps import StoredSteps

POLICY = load_policy(STARTER_POLICY, "starter")
THREAD = Thread("thr_1", "acme", "t")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
# Every capability, with the settings that it cannot be without.
ALL: dict[str, Any] = {
    "filesystem": None,
    "bash": {"deny": [["git", "push"]]},
    "python": {"timeout_s": 60},
    "todos": None,
    "metadata": None,
    "memory": None,
    "skills": None,
    "attachments": None,
    "summarization": None,
    "structured_output": {"schema": SCHEMA},
    "self_critique": None,
    "subagents": {"definitions": {"reader": {"description": "reads", "system_prompt": "You read."}}},
    "tool_registry": None,
    "tracing": None,
}
LIMITS = {
    "steps_limit",
    "token_usage_limit",
    "execution_time_limit",
    "tool_call_limit",
    "cost_limit",
    "repeated_calls",
    "forced_continuations_cap",
}
INNERMOST = ["eviction", "journal", "policy"]


class FakeWorkspace(FakeFiles, FakeShell):
    """Files and a shell."""

    def __init__(self, done: FakeExec = FakeExec()) -> None:  # noqa: B008 - it is frozen
        FakeFiles.__init__(self)
        FakeShell.__init__(self, done)


class NoJournal(Store):
    """A store that takes a journal and keeps nothing."""

    def __init__(self) -> None:
        self.clock = now_us

    async def write_tool_call(self, row: dict[str, Any], **_: Any) -> None: ...

    async def finish_tool_call(self, call_id: str, changes: dict[str, Any], **_: Any) -> None: ...


def _settings(capabilities: Mapping[str, Any] | None = None, **fields: Any) -> AgentSettings:
    return AgentSettings.model_validate({**fields, "capabilities": capabilities})


def _built(
    settings: AgentSettings,
    *,
    document: PolicyDocument = POLICY.document,
    workspace: FakeWorkspace | None = None,
    model: Model | None = None,
) -> tuple[Capability, ...]:
    model = model or SaysInTurn(says("done"))
    return build(settings, ModelSettings(), document, workspace or FakeWorkspace(), lambda _: model)


def _hosted() -> tuple[Hook, ...]:
    """Return the gateway's own hooks of a run."""
    store = NoJournal()
    kept = AgentState(run_id="r1", thread="t")
    journal = JournalHook(store, THREAD, lambda: "p")
    return (journal, PolicyHook(POLICY), ThreadHistoryHook(StoredSteps(store), THREAD, kept))


def _mandatory(capabilities: tuple[Capability, ...]) -> list[Hook]:
    """Return the mandatory hooks of a hosted agent in the order they are run."""
    engine = HookEngine([*chain.from_iterable(one.hooks for one in capabilities), *_hosted()])
    return [hook for hook in engine.hooks if hook.mandatory]


def _every_choice() -> list[dict[str, Any]]:
    # An order is wrong between two of them, or where one is missing.
    names = list(ALL)
    chosen = chain.from_iterable(combinations(names, count) for count in (0, 1, 2, len(names) - 1, len(names)))
    return [{name: ALL[name] for name in some} for some in chosen if "skills" not in some or "filesystem" in some]


def _limiting(**limits: Any) -> PolicyDocument:
    return POLICY.document.model_copy(update={"limits": POLICY.document.limits.model_copy(update=limits)})


def test_no_choice_of_capabilities_removes_or_reorders_a_mandatory_hook() -> None:
    document = _limiting(cost_usd=1.0)
    usual = [hook.name for hook in _mandatory(_built(_settings({}), document=document))]
    assert set(usual) == LIMITS | set(INNERMOST)
    assert usual[-3:] == INNERMOST
    for chosen in _every_choice():
        hooks = _mandatory(_built(_settings(chosen), document=document))
        assert [hook.name for hook in hooks if hook.name in usual] == usual, sorted(chosen)
        assert hooks[-1].innermost, sorted(chosen)


def test_the_order_in_the_yaml_changes_nothing() -> None:
    one = _built(_settings(ALL))
    other = _built(_settings(dict(reversed(list(ALL.items())))))
    assert [capability.name for capability in one] == [capability.name for capability in other]


def test_each_capability_can_be_chosen_and_is_there_when_it_is() -> None:
    assert [capability.name for capability in _built(_settings(ALL))] == [*ALL, "flow", "limits"]
    assert set(CapabilitiesSettings.model_fields) == {*ALL, "flow"}


def test_the_agents_own_tools_are_those_that_a_policy_can_name() -> None:
    tools = {tool.name for capability in _built(_settings(ALL)) for tool in capability.tools}
    assert tools - TOOLS - JUDGED_AS.keys() == set(AGENT_TOOLS)


@pytest.mark.parametrize("name", AGENT_TOOLS)
def test_the_starter_policy_lets_the_agents_own_tools_run(name: str) -> None:
    decision = POLICY.judge(name, {})
    runs_code = name == EXECUTE_PYTHON
    assert (decision.verdict, decision.rule) == ("allow", "python" if runs_code else "agent-tools")
    assert ("nothing but the run's own state" in decision.reason) == (not runs_code)


def test_a_policy_that_does_not_name_an_agents_tool_denies_it() -> None:
    policy = load_policy(
        "version: 1\nrules:\n- {id: a, tools: [write_todos], effect: allow, reason: r}\n"
        "- {id: b, tools: [find_tools], effect: deny, reason: r}\n",
        "test",
    )
    assert policy.judge("write_todos", {}).verdict == "allow"
    assert policy.judge("find_tools", {}).rule == "b"
    assert policy.judge("spawn_subagent", {}).rule == "default-deny"
    assert policy.judge("no_such_tool", {}).rule == "default-deny"


@pytest.mark.parametrize(
    "rule", ["tools: [write_todos, execute]", "tools: [write_todos], paths: [/a]", "tools: [write_todos], argv: [[a]]"]
)
def test_a_rule_about_an_agents_own_tools_is_about_nothing_else(rule: str) -> None:
    with pytest.raises(PolicyError, match="agent's own tools"):
        load_policy(f"version: 1\nrules:\n- {{id: a, {rule}, effect: allow, reason: r}}\n", "test")


def made_calls() -> ToolCalls:
    absent = cast(Any, None)
    return ToolCalls(NoJournal(), absent, approvals=absent, quotas=absent, heavy_work=HeavyWork())


@pytest.mark.parametrize("effect", ["allow", "ask", "deny", ""])
async def test_a_service_is_shown_the_seven_tools_and_execute_python_where_a_rule_lets_it_pass(effect: str) -> None:
    rule = f"rules:\n- {{id: a, tools: [execute_python], effect: {effect}, reason: r}}\n" if effect else ""
    tenant = Tenant("acme", load_policy(f"version: 1\n{rule}", "test"), ModelSettings(), {"default": _settings(ALL)})
    calls = made_calls()
    specs = await calls.specs(tenant)
    python = {EXECUTE_PYTHON} if effect in {"allow", "ask"} else set()
    assert {spec.name for spec in specs} == (TOOLS - {CONNECT}) | python
    assert len(specs) == 7 + len(python)


async def test_the_model_reads_how_the_network_is_reached_if_the_policy_lets_it_connect() -> None:
    async def said(policy: Policy) -> str:
        tenant = Tenant("acme", policy, ModelSettings(), {"default": _settings(ALL)})
        calls = made_calls()
        return next(spec.description for spec in await calls.specs(tenant) if spec.name == "execute")

    rule = "{id: a, tools: [connect], hosts: [pypi.org], effect: %s, reason: r}"
    assert "There is no network" in await said(POLICY)
    assert "There is no network" in await said(load_policy(f"version: 1\nrules:\n- {rule % 'deny'}\n", "test"))
    assert "HTTPS_PROXY" in await said(load_policy(f"version: 1\nrules:\n- {rule % 'ask'}\n", "test"))


async def _run(
    settings: AgentSettings,
    *responses: Any,
    document: PolicyDocument = POLICY.document,
    workspace: FakeWorkspace | None = None,
) -> tuple[AgentState, SaysInTurn]:
    model = SaysInTurn(*responses)
    agent = Agent(
        model=model,
        capabilities=_built(settings, document=document, workspace=workspace, model=model),
        hooks=(JournalHook(NoJournal(), THREAD, lambda: "p"), PolicyHook(POLICY)),
    )
    task = Message(role="user", content="do it")
    return await agent.run(AgentState(run_id="r1", thread="t", messages=(task,))), model


def _results(state: AgentState) -> list[str]:
    return [message.content for message in state.messages if message.role == "tool"]


async def test_limits_are_those_of_the_policy() -> None:
    document = _limiting(tool_calls=3, cost_usd=0.5)
    loops = [says("", call("execute", command=f"echo {n}")) for n in range(20)]
    ended, _ = await _run(_settings(), *loops, document=document)
    assert ended.stop is not None
    assert (ended.stop.hook, ended.tool_calls) == ("tool_call_limit", 3)
    costly = loops[0].model_copy(update={"usage": Usage(output_tokens=1, cost_usd=0.3)})
    ended, _ = await _run(_settings(), costly, document=document)
    assert ended.stop is not None
    assert (ended.stop.hook, ended.steps) == ("cost_limit", 2)


async def test_an_agents_own_rules_for_commands_hold_besides_the_policy() -> None:
    workspace = FakeWorkspace()
    settings = _settings({"bash": {"allow": [["git"]], "deny": [["git", "push"]]}})
    commands = ("git status", "git push", "curl x")
    ended, _ = await _run(
        settings, *(says("", call("execute", command=line)) for line in commands), says("done"), workspace=workspace
    )
    assert workspace.commands == ["git status"]
    assert [("command_policy" in result) for result in _results(ended)] == [False, True, True]


@pytest.mark.parametrize("settings, asked_s", [({}, 120.0), ({"timeout_s": 7}, 7.0), ({"timeout_s": 900}, 300.0)])
async def test_a_command_takes_no_longer_than_the_policy_lets_it(settings: dict[str, Any], asked_s: float) -> None:
    workspace = FakeWorkspace()
    await _run(_settings({"bash": settings}), says("", call("execute", command="ls")), says("x"), workspace=workspace)
    assert workspace.settings[0]["timeout_s"] == asked_s


@pytest.mark.parametrize("capabilities", [{}, {"filesystem": None}])
async def test_a_large_result_is_evicted_with_and_without_the_file_tools(capabilities: dict[str, Any]) -> None:
    eviction = POLICY.document.eviction.model_copy(update={"limit_chars": 1000, "head_chars": 10, "tail_chars": 10})
    document = POLICY.document.model_copy(update={"eviction": eviction})
    (hook,) = [
        hook
        for capability in _built(_settings(capabilities), document=document)
        for hook in capability.hooks
        if isinstance(hook, EvictionHook)
    ]
    engine = HookEngine([hook])

    async def large(_: object) -> Any:
        result = await done()
        return type(result)(b"x" * 1001)

    result = await engine.around_tool_use(large, lambda _: None)(execution_of(call("find_tools")))
    assert result.evicted is not None
    assert result.evicted.size_bytes == 1001
    assert len(result.content) < 1000


async def test_output_of_a_command_is_evicted_at_the_source_by_its_own_sizes() -> None:
    workspace = FakeWorkspace(FakeExec(output=(FakePiece("stdout", b"hi"),)))
    own_sizes = "  tail_chars: 2000\n  tools: {execute: {limit_chars: 5000}}"
    document = load_policy(STARTER_POLICY.replace("  tail_chars: 2000", own_sizes), "test").document
    await _run(_settings(), says("", call("execute", command="ls")), says("x"), document=document, workspace=workspace)
    assert workspace.settings[0]["limit_chars"] == 5000


async def test_flow_may_be_set_and_what_is_not_set_is_usual() -> None:
    settings = _settings({"bash": None, "flow": {"on_tool_blocked": "stop"}})
    ended, model = await _run(settings, says("", call("no_such_tool")), says("done"))
    assert ended.stop is not None
    assert ended.stop.hook == "error_policy"
    assert len(model.requests) == 1
    ended, model = await _run(_settings({"bash": None}), says("", call("no_such_tool")), says("done"))
    assert len(model.requests) == 2


def test_each_model_is_opened_by_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = {"description": "d", "system_prompt": "s", "model": {"name": "cheap"}}
    settings = _settings(
        {"summarization": None, "subagents": {"definitions": {"reader": reader}}}, model={"name": "own"}
    )
    asked: list[ModelSettings] = []

    def model_of(which: ModelSettings) -> Model:
        asked.append(which)
        return SaysInTurn(says("x"))

    build(settings, ModelSettings(name="usual"), POLICY.document, FakeWorkspace(), model_of)
    assert [one.name for one in asked] == ["own", "cheap"]
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert [one.name for one in settings.models(ModelSettings(name="usual"))] == ["own", "cheap"]
    assert [one.name for one in _settings().models(ModelSettings(name="usual"))] == ["usual"]


@pytest.mark.parametrize(
    "capabilities, limits, problem",
    [
        (
            {
                "bash": None,
                "subagents": {"definitions": {"r": {"description": "d", "system_prompt": "s", "tools": ["grp"]}}},
            },
            {},
            r"subagents\.definitions\.r\.tools: unknown tool 'grp'; available: execute, spawn_subagent",
        ),
        (
            {"tool_registry": {"always": ["execute"]}},
            {},
            r"capabilities\.tool_registry\.always: unknown tool 'execute'; available: find_tools",
        ),
        ({}, {"cost_usd": 1.0}, r"model: .*input_usd_per_mtok"),
        (
            {"subagents": {"definitions": {"r": {"description": "d", "system_prompt": "s", "cost_usd": 0.1}}}},
            {},
            r"model: .*not known",
        ),
    ],
)
def test_a_bad_agent_is_found_before_a_run_names_it(
    capabilities: dict[str, Any], limits: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Misconfigured, match=problem):
        check(_settings(capabilities), ModelSettings(name="m"), _limiting(**limits))


@pytest.mark.parametrize("agent", [{"capabilities": ALL}, {}, {"capabilities": {}}])
def test_a_good_agent_passes(agent: dict[str, Any]) -> None:
    check(AgentSettings.model_validate(agent), ModelSettings(), POLICY.document)


def test_money_is_limited_where_the_prices_are_known() -> None:
    document = _limiting(cost_usd=1.0)
    priced = ModelSettings(input_usd_per_mtok=0, output_usd_per_mtok=2)
    check(_settings(), priced, document)
    reader = {"description": "d", "system_prompt": "s", "model": {"name": "cheap"}}
    with pytest.raises(Misconfigured, match=r"definitions\.reader\.model: .*'cheap'"):
        check(_settings({"subagents": {"definitions": {"reader": reader}}}), priced, document)


def _load(directory: Path, text: str) -> Mapping[str, Tenant]:
    (directory / "p.yaml").write_text(STARTER_POLICY, encoding="utf-8")
    (directory / "airlock.yaml").write_text(text, encoding="utf-8")
    return load_tenants(Config.load(directory / "airlock.yaml"))


LEVELS = """\
model: {{name: house, base_url: http://house/v1, api_key_env: HOUSE_KEY, stream: false, max_output_tokens: 900}}
tenants:
  acme:
    policy: p.yaml
    model: {{timeout_s: 7, input_usd_per_mtok: 1, output_usd_per_mtok: 2}}
    agents:
      mender:
        model: {agent}
        capabilities:
          subagents: {{definitions: {{reader: {{description: d, system_prompt: s, model: {subagent}}}}}}}
"""


def test_a_model_that_has_only_a_name_is_asked_where_its_agents_its_tenants_or_the_gateways_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOUSE_KEY", "k")
    monkeypatch.setenv("OWN_KEY", "k")

    def models(agent: str, subagent: str) -> list[tuple[object, ...]]:
        tenant = _load(tmp_path, LEVELS.format(agent=agent, subagent=subagent))["acme"]
        opened: list[ModelSettings] = []

        def model_of(which: ModelSettings) -> Model:
            opened.append(which)
            return SaysInTurn(says("x"))

        mender = tenant.agents["mender"]
        build(mender, tenant.model, POLICY.document, FakeWorkspace(), model_of)
        assert list(mender.models(tenant.model)) == opened  # the start of a run looks at what it will ask
        return [
            (one.name, one.base_url, one.api_key_env, one.stream, one.timeout_s, one.max_output_tokens, one.priced)
            for one in opened
        ]

    there = ("http://house/v1", "HOUSE_KEY", False)
    assert models("{name: own}", "{name: cheap}") == [
        ("own", *there, 7.0, 900, False),
        ("cheap", *there, 7.0, 900, False),
    ]
    assert models("", "{max_output_tokens: 50}") == [
        ("house", *there, 7.0, 900, True),
        ("house", *there, 7.0, 50, True),
    ]
    assert models("{base_url: http://own/v1, api_key_env: OWN_KEY, timeout_s: 8}", "{stream: true}") == [
        ("house", "http://own/v1", "OWN_KEY", False, 8.0, 900, False),
        ("house", "http://own/v1", "OWN_KEY", True, 8.0, 900, False),
    ]


@pytest.mark.parametrize(
    "agent, subagent, where",
    [
        ("{base_url: http://own/v1}", "", "model"),
        ("", "{base_url: http://own/v1}", "capabilities.subagents.definitions.reader.model"),
    ],
)
def test_another_endpoint_without_a_key_keeps_the_gateway_from_starting(
    tmp_path: Path, agent: str, subagent: str, where: str
) -> None:
    said = rf"^tenants\.acme\.agents\.mender\.{where}\.base_url: set api_key_env beside it"
    with pytest.raises(Misconfigured, match=said):
        _load(tmp_path, LEVELS.format(agent=agent, subagent=subagent))


def test_prices_of_the_level_around_count_for_the_same_model_and_for_no_other(tmp_path: Path) -> None:
    document = _limiting(cost_usd=1.0)
    same = _load(tmp_path, LEVELS.format(agent="{stream: true}", subagent="{timeout_s: 5}"))["acme"]
    check(same.agents["mender"], same.model, document)
    other = _load(tmp_path, LEVELS.format(agent="{stream: true}", subagent="{name: cheap}"))["acme"]
    with pytest.raises(Misconfigured, match=r"definitions\.reader\.model: .*'cheap'"):
        check(other.agents["mender"], other.model, document)


@pytest.mark.parametrize(
    "there, whose",
    [("HOUSE_KEY", "subagent reader of agent mender: set CHEAP_KEY"), ("CHEAP_KEY", "agent mender: set HOUSE_KEY")],
)
def test_a_missing_key_is_reported_with_the_model_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, whose: str
) -> None:
    monkeypatch.delenv("HOUSE_KEY", raising=False)
    monkeypatch.delenv("CHEAP_KEY", raising=False)
    monkeypatch.setenv(there, "k")
    tenant = _load(tmp_path, LEVELS.format(agent="", subagent="{api_key_env: CHEAP_KEY}"))["acme"]
    with pytest.raises(Misconfigured, match=f"^no key for the model of {whose} "):
        list(tenant.agents["mender"].models(tenant.model, "mender"))


def _forced_cap(capabilities: dict[str, Any]) -> int:
    (hook,) = [hook for hook in _mandatory(_built(_settings(capabilities))) if hook.name == "forced_continuations_cap"]
    return int(hook.limit)


def test_as_many_steps_may_be_forced_as_an_agents_settings_ask_for() -> None:
    assert _forced_cap({}) == 5
    assert _forced_cap({"structured_output": {"schema": SCHEMA, "retries": 3}, "self_critique": {"rounds": 1}}) == 5
    assert _forced_cap({"structured_output": {"schema": SCHEMA, "retries": 20}, "self_critique": {"rounds": 7}}) == 27


async def test_every_retry_that_an_agent_asks_for_is_made() -> None:
    settings = _settings({"structured_output": {"schema": {"type": "integer"}, "retries": 7}})
    ended, model = await _run(settings, *(says("no number") for _ in range(7)), says("7"))
    assert ended.metadata["structured_output.value"] == 7
    assert len(model.requests) == 8


def test_a_tenant_that_is_loaded_knows_its_agents_only(tmp_path: Path) -> None:
    tenants = _load(
        tmp_path, "tenants:\n  a: {policy: p.yaml, agents: {mine: {}}}\n  b: {policy: p.yaml, agents: {theirs: {}}}\n"
    )
    assert set(tenants["a"].agents) == {"default", "mine"}
    assert set(tenants["b"].agents) == {"default", "theirs"}


def test_the_agents_that_the_starter_configuration_suggests_can_be_had(tmp_path: Path) -> None:
    before, marker, suggested = STARTER_CONFIG.partition("# agents:")
    assert marker
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text(STARTER_POLICY, encoding="utf-8")
    uncommented = suggested.replace("\n# ", "\n ")
    tenants = _load(tmp_path, f"{before}agents:{uncommented}")
    asked = tenants["default"].agents["default"].capabilities
    assert asked.todos is not None
    assert asked.memory is not None


def test_a_bad_agent_keeps_the_gateway_from_starting_and_is_named(tmp_path: Path) -> None:
    registry: JsonValue = "{capabilities: {tool_registry: {always: [nope]}}}"
    with pytest.raises(Misconfigured, match=r"^tenants\.a\.agents\.bad\.capabilities\.tool_registry\.always: .*'nope'"):
        _load(tmp_path, f"tenants:\n  a: {{policy: p.yaml, agents: {{bad: {registry}}}}}\n")
    with pytest.raises(Misconfigured, match=r"^for tenant a: agents\.bad\.capabilities\.tool_registry\.always: "):
        _load(tmp_path, f"agents: {{bad: {registry}}}\ntenants:\n  a: {{policy: p.yaml}}\n")


def test_what_services_call_and_what_an_agent_has_are_the_same_tools() -> None:
    ours = service_tools(POLICY.document, cast(Workspace, FakeWorkspace()))
    theirs = _built(_settings())
    assert [tool.name for one in ours for tool in one.tools] == [tool.name for one in theirs for tool in one.tools]


def test_a_tool_of_a_capability_is_not_there_without_it() -> None:
    tools = [tool.name for capability in _built(_settings({"todos": None})) for tool in capability.tools]
    assert tools == ["write_todos"]
