"""Tool calls, runs and inferences as spans and metrics, by the way that they take in a gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from agent.agent import Agent
from agent.errors import ModelUnavailable
from agent.hooks.hook import Hook
from agent.messages import Message, ToolCall, ToolResult, Usage
from agent.state import AgentState
from agent.tools.tool import Capability, ToolContext
from gateway.policy import STARTER_POLICY, load_policy
from gateway.redaction import Redactor
from gateway.telemetry import attributes as a
from gateway.telemetry.hook import TRACEPARENT, TelemetryHook
from gateway.telemetry.observed import ObservedModel, hosted
from gateway.telemetry.telemetry import Telemetry
from tests.unit.agent.fakes import AnyArguments, Events, PolicyThat, SaysInTurn, allowing, call, done, says, tool
from tests.unit.gateway.redaction.secrets import B64
from tests.unit.gateway.telemetry.documented import SPANS
from tests.unit.gateway.telemetry.seen import Seen, watching

TOKEN = "gh" + "p_" + B64[:36]
_TEMPLATES = {name.partition(" ")[0]: attributes for name, attributes in SPANS.items()}


async def run(seen: Seen, *responses: Any, policy: Hook | None = None, state: AgentState | None = None) -> AgentState:
    """Have a run with tools that say what the test gives them."""

    async def says_all(arguments: AnyArguments, context: ToolContext) -> ToolResult:
        return ToolResult(content=f"it was {arguments.model_dump()}".encode(), outcome="exited", exit_code=3)

    redactor = Redactor(load_policy(STARTER_POLICY, "starter").document.redaction)
    hook = TelemetryHook(seen.telemetry, "acme", "t", "r1", redactor)
    model = ObservedModel(SaysInTurn(*responses), seen.telemetry, "http://model.example:8080/v1")
    agent = Agent(
        model=model,
        name="mender",
        capabilities=[Capability("all", tools=[tool("execute", says_all), tool("odd", done)])],
        hooks=(hook, policy or allowing()),
    )
    begin = state or AgentState(run_id="r1", thread="t", messages=(Message(role="user", content="go"),))
    with hosted(seen.telemetry, begin, tenant="acme", agent="mender", model=model.name) as watched:
        return await agent.run(begin, watched.observing(Events()))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def hooks(span: ReadableSpan) -> list[dict[str, Any]]:
    return [dict(event.attributes or {}) for event in span.events]


def judges(reported: dict[str, Any]) -> bool:
    return (reported[a.HOOK_NAME], reported[a.HOOK_POINT]) == ("policy", "before_tool_use")


async def test_a_run_is_a_tree_of_agent_inferences_and_tool_calls() -> None:
    seen = watching()
    first = says("", call("execute", command="true")).model_copy(update={"usage": Usage(input_tokens=7)})
    await run(seen, first, says("done"))
    (agent,) = [span for span in seen.spans if span.name == "invoke_agent mender"]
    chats = [span for span in seen.spans if span.name == "chat in-turn"]
    assert len(chats) == 2
    executed = seen.span("execute_tool execute")
    assert agent.context is not None
    assert all(span.parent and span.parent.span_id == agent.context.span_id for span in [*chats, executed])
    assert attributes(agent)[a.RUN_STATUS] == "completed"
    assert attributes(agent)[a.INPUT_TOKENS] == 7 + 1  # the second says one
    reported = attributes(executed)
    assert (reported[a.TENANT], reported[a.CONVERSATION], reported[a.RUN_ID]) == ("acme", "t", "r1")
    assert (reported[a.VERDICT], reported[a.RULE], reported[a.OUTCOME], reported[a.EXIT_CODE]) == (
        "allow",
        "allow_all",
        "exited",
        3,
    )
    assert attributes(chats[0])[a.FINISH_REASONS] == ("tool_calls",)
    assert (attributes(chats[0])[a.SERVER_ADDRESS], attributes(chats[0])[a.SERVER_PORT]) == ("model.example", 8080)


async def test_no_span_carries_what_the_tables_do_not_name() -> None:
    seen = watching(record_arguments=True, record_results=True)
    await run(seen, says("", call("execute", command="true"), call("odd", "c2")), says("done"))
    assert len(seen.spans) == 5
    for span in seen.spans:
        assert set(attributes(span)) <= set(_TEMPLATES[span.name.partition(" ")[0]]), span.name
        for event in span.events:
            assert (event.name, set(event.attributes or {})) == (
                a.HOOK_EVENT,
                {a.HOOK_NAME, a.HOOK_POINT, a.HOOK_DURATION_S},
            )


async def test_each_hook_is_an_event_with_its_time_on_the_span_it_ran_in() -> None:
    seen = watching()
    await run(seen, says("", call("execute", command="true")), says("done"))
    (taken_s,) = [
        reported[a.HOOK_DURATION_S] for reported in hooks(seen.span("execute_tool execute")) if judges(reported)
    ]
    assert isinstance(taken_s, float)
    assert taken_s > 0
    points = {reported[a.HOOK_POINT] for reported in hooks(seen.span("invoke_agent mender"))}
    assert points >= {"before_step", "after_inference", "after_step"}
    assert not points & {"before_tool_use", "after_tool_use"}
    assert seen.points("airlock.policy.decision.duration")[0][1].count == 1


async def test_a_denied_call_has_its_span_and_its_count() -> None:
    seen = watching()
    denies = PolicyThat(lambda state: state.block("policy", "no-shell", "not here"))
    await run(seen, says("", call("execute", command="true")), says("done"), policy=denies)
    reported = attributes(seen.span("execute_tool execute"))
    assert (reported[a.VERDICT], reported[a.RULE], reported[a.ERROR_TYPE]) == ("deny", "no-shell", "blocked")
    ((labels, _),) = seen.points("airlock.tool.call.duration")
    assert labels == {a.TOOL_NAME: "execute", a.VERDICT: "deny", a.OUTCOME: "blocked"}
    ((labels, point),) = seen.points("airlock.tenant.tool.calls")
    assert (labels, point.value) == ({a.TENANT: "acme", a.VERDICT: "deny"}, 1)


async def test_calls_at_once_do_not_share_a_span() -> None:
    seen = watching()
    calls = [call("execute", f"c{number}", command=str(number)) for number in range(8)]
    await run(seen, says("", *calls), says("done"))
    executed = [span for span in seen.spans if span.name == "execute_tool execute"]
    assert len({attributes(span)[a.TOOL_CALL_ID] for span in executed}) == 8
    assert all(sum(map(judges, hooks(span))) == 1 for span in executed)


async def test_arguments_and_results_are_recorded_only_when_enabled() -> None:
    asked = says("", call("execute", command="echo here-I-am"))
    seen = watching()
    await run(seen, asked, says("done"))
    assert "here-I-am" not in repr([(span.name, attributes(span), span.events) for span in seen.spans])
    seen = watching(record_arguments=True, record_results=True)
    await run(seen, asked, says("done"))
    reported = attributes(seen.span("execute_tool execute"))
    assert reported[a.TOOL_ARGUMENTS] == '{"command":"echo here-I-am"}'
    assert reported[a.TOOL_RESULT].startswith("it was")


async def test_secrets_are_in_no_span_and_no_label_whatever_is_recorded() -> None:
    seen = watching(record_arguments=True, record_results=True)
    odd = ToolCall(id="c2", name=f"odd_{TOKEN}", arguments={"x": TOKEN})
    await run(seen, says(TOKEN, call("execute", command=f"export T={TOKEN}"), odd), ModelUnavailable(TOKEN))
    shown = [(span.name, attributes(span), span.events, span.status.description) for span in seen.spans]
    data = seen.reader.get_metrics_data()
    assert B64[:36] not in repr(shown) + (data.to_json() if data else "")
    assert "[redacted" in attributes(seen.span("execute_tool execute"))[a.TOOL_ARGUMENTS]
    assert "[redacted" in attributes(seen.span("execute_tool other"))[a.TOOL_NAME]
    assert {labels[a.TOOL_NAME] for labels, _ in seen.points("airlock.tool.call.duration")} == {"execute", "other"}


async def test_a_model_that_fails_is_an_error_by_its_class_alone() -> None:
    seen = watching()
    await run(seen, ModelUnavailable("the words of an endpoint"))
    chat = next(span for span in seen.spans if span.name.startswith("chat"))
    assert attributes(chat)[a.ERROR_TYPE] == "ModelUnavailable"
    assert attributes(seen.span("invoke_agent mender"))[a.RUN_STATUS] == "failed"
    labels = [labels for labels, _ in seen.points("gen_ai.client.operation.duration")]
    assert {label[a.ERROR_TYPE] for label in labels} == {"ModelUnavailable"}


async def test_tokens_are_counted_by_model_and_kind() -> None:
    seen = watching()
    await run(seen, says("done").model_copy(update={"usage": Usage(input_tokens=40, output_tokens=2)}))
    sums = {labels[a.TOKEN_TYPE]: point.sum for labels, point in seen.points("gen_ai.client.token.usage")}
    assert sums == {"input": 40, "output": 2}


async def test_a_run_that_comes_back_goes_on_in_its_trace() -> None:
    seen = watching()
    state = await run(seen, says("done"))
    assert isinstance(state.notes[TRACEPARENT], str)
    first = seen.span("invoke_agent mender")
    seen.exporter.clear()
    await run(seen, says("done"), state=AgentState(run_id="r1", thread="t", notes=state.notes))
    again = seen.span("invoke_agent mender")
    assert first.context is not None
    assert again.context is not None
    assert again.parent is not None
    assert (again.context.trace_id, again.parent.span_id) == (first.context.trace_id, first.context.span_id)


async def test_a_run_that_is_cancelled_leaves_no_open_span_and_is_no_longer_live() -> None:
    seen = watching()
    began = asyncio.Event()

    def waits(state: AgentState) -> AgentState:
        began.set()
        return state.proceed("policy", "r", "r")

    class Endless(SaysInTurn):
        async def infer(self, *_: Any) -> Any:
            began.set()
            await asyncio.Event().wait()

    async def endless() -> None:
        begin = AgentState(run_id="r1", thread="t", messages=(Message(role="user", content="go"),))
        hook = TelemetryHook(seen.telemetry, "acme", "t", "r1", None)
        agent = Agent(model=ObservedModel(Endless(), seen.telemetry), hooks=(hook, PolicyThat(waits)))
        with hosted(seen.telemetry, begin, tenant="acme", agent="mender", model="m") as watched:
            await agent.run(begin, watched.observing(Events()))

    task = asyncio.create_task(endless())
    await began.wait()
    assert seen.points("airlock.run.live")[0][1].value == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen.points("airlock.run.live")[0][1].value == 0
    assert attributes(seen.span("invoke_agent mender"))[a.RUN_STATUS] == "cancelled"


async def test_what_is_not_sampled_has_no_spans_and_all_of_its_metrics() -> None:
    seen = watching(sample_ratio=0.0)
    await run(seen, says("", call("execute", command="true")), says("done"))
    assert seen.spans == ()
    assert seen.points("airlock.tool.call.duration")[0][1].count == 1


def test_telemetry_that_is_off_records_nothing() -> None:
    assert not Telemetry.off().on
