"""A gateway that tells: a real receiver of traces, a real scrape, and its own log, after calls and a run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from airlock import client_span
from gateway.client import Client
from gateway.errors import InvalidArgument
from gateway.telemetry import attributes as a
from gateway.telemetry.telemetry import METRICS
from tests.gateway_process import Home, make_home, served
from tests.unit.gateway.redaction.secrets import B64
from tests.unit.gateway.telemetry.documented import METRIC_LABELS, SPANS
from tests.unit.gateway.telemetry.receiver import Received, receiver, reported

ROOT = Path(__file__).parents[3]
TOKEN = "gh" + "p_" + B64[:36]
SERVICE = "of the service"
CALL_TOOL, START_RUN = "gateway.v1.ToolService/CallTool", "gateway.v1.RunService/StartRun"


@dataclass(frozen=True)
class Recorded:
    """All that was reported."""

    received: Received
    client: Sequence[ReadableSpan]
    scrape: str
    log: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    home = make_home(tmp_path_factory.mktemp("telemetry"))
    home.configure(sandbox={"keep_workspaces": False, "pool_limit": 1})  # it has metrics as well
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_span, "_tracer", lambda: provider.get_tracer("airlock.client"))
        yield asyncio.run(_scenario(home, exporter, provider))


async def _scenario(home: Home, exporter: InMemorySpanExporter, provider: TracerProvider) -> Recorded:
    turns = [
        Turn(say="I look.", calls=(Call("execute", {"command": f"export T={TOKEN}; echo $T"}),)),
        Turn(say="Done."),
    ]
    async with receiver() as received, ScriptedModelServer(turns) as model:
        home.configure(
            model={"base_url": model.base_url, "name": "scripted"},
            telemetry={
                "otlp_endpoint": received.endpoint,
                "metrics_listen": "127.0.0.1:0",
                "record_arguments": True,
                "record_results": True,
                "sandbox_usage_s": 1,
            },
        )
        policy = home.config.parent / "policies" / "default.yaml"
        document = yaml.safe_load(policy.read_text(encoding="utf-8"))
        document["rules"].append(
            {"id": "net", "tools": ["connect"], "hosts": ["allowed.example"], "effect": "allow", "reason": "A test."}
        )
        policy.write_text(yaml.safe_dump(document), encoding="utf-8")
        # Stopped beside this loop, in which the receiver has to answer meanwhile.
        stack = contextlib.ExitStack()
        gateway = stack.enter_context(served(home, {"OPENAI_API_KEY": "none", "NO_PROXY": "127.0.0.1"}))
        log = home.config.parent / "serve.log"
        try:
            async with Client(gateway.address, home.key) as airlock:
                with provider.get_tracer("service").start_as_current_span(SERVICE):
                    await airlock.call_tool("execute", {"command": f"export T={TOKEN}; echo $T"}, thread="t")
                    run = await airlock.start_run("go", thread="t")
                assert [event async for event in airlock.watch_run(run.id)]
                with pytest.raises(InvalidArgument):
                    await airlock.call_tool("", {}, thread="t")
                await airlock.call_tool(f"odd_{TOKEN}", {}, thread="t")
                await airlock.call_tool("execute", {"command": "curl -s http://denied.example/"}, thread="t")
            scrape = await asyncio.to_thread(_scraped, log.read_text(encoding="utf-8"))
        finally:
            await asyncio.to_thread(stack.close)
    return Recorded(received, exporter.get_finished_spans(), scrape, log.read_text(encoding="utf-8"))


def _scraped(log: str) -> str:
    (address,) = re.findall(r'"address": "([^"]+)", "event": "metrics are served"', log)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def _below(spans: Sequence[Span], parent: bytes, name: str) -> Span:
    return next(span for span in spans if span.name == name and span.parent_span_id == parent)


def test_one_trace_goes_from_the_client_to_the_sandbox(recorded: Recorded) -> None:
    (service,) = [span for span in recorded.client if span.name == SERVICE]
    called = next(span for span in recorded.client if span.name == CALL_TOOL)
    assert service.context is not None
    assert called.context is not None
    assert called.parent is not None
    assert called.parent.span_id == service.context.span_id
    trace = service.context.trace_id.to_bytes(16)
    spans = [span for span in recorded.received.spans if span.trace_id == trace]
    rpc = _below(spans, called.context.span_id.to_bytes(8), CALL_TOOL)
    tool = _below(spans, rpc.span_id, "execute_tool execute")
    used = _below(spans, tool.span_id, "use_sandbox")
    created = _below(spans, used.span_id, "create_sandbox")
    assert reported(created)[a.SANDBOX_ID] == reported(used)[a.SANDBOX_ID]
    hooks = {one.value.string_value for event in tool.events for one in event.attributes if one.key == a.HOOK_NAME}
    assert hooks >= {"policy", "journal"}
    assert (reported(tool)[a.VERDICT], reported(tool)[a.OUTCOME], reported(tool)[a.TENANT]) == (
        "allow",
        "exited",
        "default",
    )


def test_a_run_goes_on_in_the_trace_of_the_call_that_began_it(recorded: Recorded) -> None:
    (service,) = [span for span in recorded.client if span.name == SERVICE]
    assert service.context is not None
    spans = [span for span in recorded.received.spans if span.trace_id == service.context.trace_id.to_bytes(16)]
    (started,) = [span for span in spans if span.name == START_RUN]
    agent = _below(spans, started.span_id, "invoke_agent default")
    assert reported(agent)[a.RUN_STATUS] == "completed"
    assert len([span for span in spans if span.name == "chat scripted" and span.parent_span_id == agent.span_id]) == 2
    tool = _below(spans, agent.span_id, "execute_tool execute")
    assert _below(spans, tool.span_id, "use_sandbox")
    assert reported(tool)[a.RUN_ID] == reported(agent)[a.RUN_ID]


def test_spans_carry_what_the_tables_name_and_nothing_else(recorded: Recorded) -> None:
    tables = {name.partition(" ")[0]: set(names) for name, names in SPANS.items()}
    for span in recorded.received.spans:
        kind = "{service}/{method}" if "/" in span.name else span.name.partition(" ")[0]
        assert set(reported(span)) <= tables[kind], span.name


def test_secrets_are_in_no_span_no_metric_and_no_line(recorded: Recorded) -> None:
    secret = TOKEN[4:]
    spans = b"".join(span.SerializeToString() for span in recorded.received.spans)
    assert b"[redacted" in spans
    assert secret.encode() not in spans
    assert secret not in recorded.scrape
    assert secret not in recorded.log


def test_each_line_in_a_call_says_whose_it_is_and_which_trace_it_belongs_to(recorded: Recorded) -> None:
    calls = [line for line in recorded.lines if line["event"] == "tool call"]
    assert len(calls) == 4
    spans = {span.trace_id.hex() for span in recorded.received.spans}
    for line in calls:
        assert (line["tenant"], line["thread"], line["trace_id"] in spans) == ("default", "t", True)
        assert line["call_id"]
        assert not {"arguments", "result", "content"} & line.keys()
    (finished,) = [line for line in recorded.lines if line["event"] == "run finished"]
    assert finished["run_id"]
    assert {line["run_id"] for line in calls} == {None, finished["run_id"]}


def _names(scrape: str) -> set[str]:
    return {re.split(r"[{ ]", line)[0] for line in scrape.splitlines() if not line.startswith("#")}


def _metrics(queries: Sequence[str]) -> set[str]:
    """Return the names of the metrics that queries read."""
    bare = [re.sub(r"\{[^}]*\}|by \([^)]*\)", "", query) for query in queries]
    return {name for query in bare for name in re.findall(r"\b\w+(?=[\[)])(?!\()", query)}


def _labels(queries: Sequence[str]) -> set[str]:
    grouped = {
        label for query in queries for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")
    }
    return grouped | {label for query in queries for label in re.findall(r'(\w+)(?:!=|=~|=)"', query)}


def _known_labels() -> set[str]:
    return {label.replace(".", "_") for labels in METRIC_LABELS.values() for label in labels}


def test_every_metric_of_the_dashboard_is_one_that_a_gateway_has(recorded: Recorded) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "airlock.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 30
    assert _metrics(queries) - _names(recorded.scrape) == set()
    assert _labels(queries) - {"le"} <= _known_labels()


def test_every_alert_is_on_metrics_that_a_gateway_has_and_stands_in_the_documentation(recorded: Recorded) -> None:
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    alerts = [rule["expr"] for rule in group["rules"]]
    assert len(alerts) == 9
    assert _metrics(alerts) - _names(recorded.scrape) == set()
    assert _labels(alerts) - {"le", "job"} <= _known_labels()
    documented = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").replace("\\|", "|")
    assert [alert for alert in alerts if f"`{alert}`" not in documented] == []


def test_the_scrape_has_every_metric_of_the_table(recorded: Recorded) -> None:
    families = {line.split()[2] for line in recorded.scrape.splitlines() if line.startswith("# TYPE ")}
    for metric in METRICS:
        family = metric.name.replace(".", "_") + {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
        assert {family, f"{family}_total"} & families, metric.name


def test_no_series_has_a_label_that_a_caller_chooses(recorded: Recorded) -> None:
    tools = set(re.findall(r'gen_ai_tool_name="([^"]+)"', recorded.scrape))
    assert tools == {"execute", "other"}
    assert set(re.findall(r'airlock_tenant="([^"]*)"', recorded.scrape)) <= {"default", ""}
