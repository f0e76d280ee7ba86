"""Every name that is reported is a convention's, or Airlock's own and in the tables."""

from __future__ import annotations

import re

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, process_attributes, rpc_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics, rpc_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes

from gateway.agents.agents import build
from gateway.config.agent_settings import AgentSettings
from gateway.config.model_settings import ModelSettings
from gateway.telemetry import attributes as a
from gateway.telemetry.hook import TOOLS
from gateway.telemetry.telemetry import METRICS, BoundedNames
from tests.unit.agent.fakes import SaysInTurn, says
from tests.unit.gateway.agents.test_agents_wiring import POLICY, READER, FakeWorkspace
from tests.unit.gateway.telemetry.documented import METRIC_LABELS, PAGE, SPANS

_CONVENTIONS = (gen_ai_attributes, process_attributes, rpc_attributes, error_attributes, server_attributes)
OURS = "airlock."


def _values(*modules: object) -> set[str]:
    return {value for module in modules for value in vars(module).values() if isinstance(value, str)}


def test_every_attribute_is_a_convention_or_our_own() -> None:
    named = {value for name, value in vars(a).items() if name.isupper() and isinstance(value, str)} - {a.HOOK_EVENT}
    assert len(named) > 25
    assert {name for name in named if not name.startswith(OURS)} <= _values(*_CONVENTIONS)
    documented = {name for names in (*SPANS.values(), *METRIC_LABELS.values()) for name in names}
    assert documented | {a.HOOK_NAME, a.HOOK_POINT, a.HOOK_DURATION_S} >= named
    assert documented <= named


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (a.OPERATION, gen_ai_attributes.GEN_AI_OPERATION_NAME),
        (a.PROVIDER, gen_ai_attributes.GEN_AI_PROVIDER_NAME),
        (a.AGENT, gen_ai_attributes.GEN_AI_AGENT_NAME),
        (a.CONVERSATION, gen_ai_attributes.GEN_AI_CONVERSATION_ID),
        (a.REQUEST_MODEL, gen_ai_attributes.GEN_AI_REQUEST_MODEL),
        (a.FINISH_REASONS, gen_ai_attributes.GEN_AI_RESPONSE_FINISH_REASONS),
        (a.INPUT_TOKENS, gen_ai_attributes.GEN_AI_USAGE_INPUT_TOKENS),
        (a.OUTPUT_TOKENS, gen_ai_attributes.GEN_AI_USAGE_OUTPUT_TOKENS),
        (a.TOKEN_TYPE, gen_ai_attributes.GEN_AI_TOKEN_TYPE),
        (a.TOOL_NAME, gen_ai_attributes.GEN_AI_TOOL_NAME),
        (a.TOOL_TYPE, gen_ai_attributes.GEN_AI_TOOL_TYPE),
        (a.TOOL_CALL_ID, gen_ai_attributes.GEN_AI_TOOL_CALL_ID),
        (a.TOOL_ARGUMENTS, gen_ai_attributes.GEN_AI_TOOL_CALL_ARGUMENTS),
        (a.TOOL_RESULT, gen_ai_attributes.GEN_AI_TOOL_CALL_RESULT),
        (a.RPC_METHOD, rpc_attributes.RPC_METHOD),
        (a.RPC_SYSTEM, rpc_attributes.RPC_SYSTEM_NAME),
        (a.RPC_STATUS, rpc_attributes.RPC_RESPONSE_STATUS_CODE),
        (a.ERROR_TYPE, error_attributes.ERROR_TYPE),
        (a.EXIT_CODE, process_attributes.PROCESS_EXIT_CODE),
    ],
)
def test_a_convention_is_followed_where_there_is_one(ours: str, theirs: str) -> None:
    assert ours == theirs


def test_the_operations_are_those_of_the_conventions() -> None:
    operations = {operation.value for operation in gen_ai_attributes.GenAiOperationNameValues}
    named = {name.partition(" ")[0] for name, attributes in SPANS.items() if a.OPERATION in attributes}
    assert named == {"invoke_agent", "chat", "execute_tool"}
    assert named <= operations
    assert {kind.value for kind in gen_ai_attributes.GenAiTokenTypeValues} >= {"input", "output"}
    assert "openai" in {provider.value for provider in gen_ai_attributes.GenAiProviderNameValues}


def test_every_metric_is_a_convention_or_our_own_and_has_a_unit_apart_from_its_name() -> None:
    theirs = _values(gen_ai_metrics, rpc_metrics)
    for metric in METRICS:
        assert metric.name in theirs or metric.name.startswith(OURS), metric.name
        assert metric.unit in ("s", "By") or re.fullmatch(r"\{[a-z]+\}", metric.unit), metric
        assert not metric.name.endswith(("_s", ".seconds", "_total")), metric
        assert metric.description.endswith("."), metric
        if metric.name.endswith(".duration"):
            assert (metric.kind, metric.unit) == ("histogram", "s"), metric
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_tools_with_a_label_are_those_that_airlock_has() -> None:
    everything = {
        **{name: {} for name in ("filesystem", "bash", "python", "todos", "metadata", "attachments", "tool_registry")},
        "skills": {"paths": ["/workspace/skills"]},
        "subagents": {"definitions": {"reader": READER}},
    }
    agent = AgentSettings.model_validate({"capabilities": everything})
    model = ModelSettings(name="m")
    built = build(agent, model, POLICY.document, FakeWorkspace(), lambda _: SaysInTurn(says("x")))
    assert {tool.name for capability in built for tool in capability.tools} == TOOLS


def test_names_past_the_limit_share_a_label_and_known_ones_keep_theirs() -> None:
    label = BoundedNames(3, {"execute"})
    assert [label(name) for name in ("a", "b", "c", "d", "a", "execute")] == [
        "a",
        "b",
        "other",
        "other",
        "a",
        "execute",
    ]
    assert BoundedNames(0)("anybody") == "other"


def test_the_page_has_every_span_attribute_and_metric_and_no_other() -> None:
    mentioned = set(re.findall(r"`((?:airlock|gen_ai|rpc|error|server|process)\.[a-z_.]+)`", PAGE))
    named = {value for name, value in vars(a).items() if name.isupper() and isinstance(value, str)} - {a.HOOK_EVENT}
    assert mentioned - {"server.py"} == named | {metric.name for metric in METRICS}
    assert METRIC_LABELS.keys() == {metric.name for metric in METRICS}
    for metric in METRICS:
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{metric.name}` |")]
        assert f"| {metric.unit} |" in row, row
