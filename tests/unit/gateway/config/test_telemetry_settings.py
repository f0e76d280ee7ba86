"""What an operator may write about telemetry, and what is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.config.operation_settings import TelemetrySettings


def test_nothing_is_exported_until_an_endpoint_is_set() -> None:
    settings = TelemetrySettings()
    assert not settings.on
    assert not (settings.record_arguments)
    assert not (settings.record_results)


@pytest.mark.parametrize("listen", ["127.0.0.1:9464", "[::1]:9464", "localhost:0", "127.8.8.8:1"])
def test_metrics_are_served_on_loopback(listen: str) -> None:
    assert TelemetrySettings(metrics_listen=listen).on


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "[::]:9464", "10.0.0.7:9464", "metrics.example:9464"])
def test_beyond_loopback_metrics_are_refused_unless_enabled(listen: str) -> None:
    with pytest.raises(ValidationError, match="metrics_beyond_loopback: true"):
        TelemetrySettings(metrics_listen=listen)
    assert TelemetrySettings(metrics_listen=listen, metrics_beyond_loopback=True).on


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1", ":9464", "127.0.0.1:99999", "127.0.0.1:http"])
def test_a_malformed_address_is_refused(listen: str) -> None:
    with pytest.raises(ValidationError, match=r"such as 127\.0\.0\.1:9464"):
        TelemetrySettings(metrics_listen=listen)


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://a:1", "http://a", "http://:4317", "http://a:x"])
def test_a_malformed_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match=r"http://127\.0\.0\.1:4317"):
        TelemetrySettings(otlp_endpoint=endpoint)
