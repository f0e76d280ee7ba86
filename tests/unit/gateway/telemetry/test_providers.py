"""Where what is reported goes: a real receiver of spans, and a real scrape."""

from __future__ import annotations

import asyncio
import socket
import urllib.request

import pytest
from structlog.testing import capture_logs

from gateway.config.operation_settings import TelemetrySettings
from gateway.errors import Misconfigured
from gateway.telemetry.telemetry import OTHER, opened
from tests.unit.gateway.telemetry.receiver import receiver


async def test_spans_reach_a_receiver_with_whose_they_are_at_the_latest_at_the_end() -> None:
    async with receiver() as received:
        settings = TelemetrySettings(otlp_endpoint=received.endpoint)
        async with opened(settings, process="gw_1") as telemetry:
            with telemetry.tracer.start_as_current_span("rpc"), telemetry.within("use_sandbox", {}):
                pass
        assert sorted(span.name for span in received.spans) == ["rpc", "use_sandbox"]
        assert received.resources[0]["service.name"] == "airlock-gateway"
        assert received.resources[0]["service.instance.id"] == "gw_1"


async def scraped(address: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def test_metrics_are_scraped_and_tenants_past_the_limit_share_a_label() -> None:
    settings = TelemetrySettings(metrics_listen="127.0.0.1:0", tenants_in_metrics=2)
    with capture_logs() as logged:
        async with opened(settings, process="gw_1") as telemetry:
            for number in range(500):
                label = telemetry.tenants(f"tenant-{number}")
                telemetry.instruments.add("airlock.tenant.tool.calls", 1, {"airlock.tenant": label})
            telemetry.instruments.read("airlock.sandbox.live", lambda: 7)
            address = logged[-1]["address"]
            text = await scraped(address)
    lines = [line for line in text.splitlines() if line.startswith("airlock_tenant_tool_calls_total{")]
    assert len(lines) == 3
    assert f'airlock_tenant_tool_calls_total{{airlock_tenant="{OTHER}"}} 498.0' in lines
    assert "airlock_sandbox_live 7.0" in text
    with pytest.raises(OSError, match="refused"):
        await scraped(address)


async def test_each_worker_has_a_port_of_its_own_and_one_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = TelemetrySettings(metrics_listen=f"127.0.0.1:{port - 1}")
        with pytest.raises(Misconfigured, match=f"metrics_listen 127.0.0.1:{port}: "):
            async with opened(settings, process="gw_1", worker=1):
                pass


async def test_a_receiver_that_is_gone_does_not_keep_a_gateway_from_stopping() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with asyncio.timeout(30), opened(TelemetrySettings(otlp_endpoint=gone), process="gw_1") as telemetry:
        telemetry.tracer.start_span("rpc").end()
