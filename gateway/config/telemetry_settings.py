"""The section `telemetry`. Nothing is exported until it sets a destination."""

from __future__ import annotations

import ipaddress
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Section

_LAST_PORT = 65_535


class TelemetrySettings(Section):
    """Where spans and metrics go, and what they contain."""

    otlp_endpoint: str | None = Field(
        default=None, description="http(s)://HOST:PORT of an OTLP receiver (gRPC); unset means no spans"
    )
    metrics_listen: str | None = Field(
        default=None, description="HOST:PORT for Prometheus; worker N uses PORT + N; unset means no metrics"
    )
    metrics_beyond_loopback: bool = Field(
        default=False, description="allow a metrics_listen that other machines can reach"
    )
    sample_ratio: float = Field(
        default=1.0, ge=0, le=1, description="sampled share of traces that start here; a client's own decision wins"
    )
    record_arguments: bool = Field(default=False, description="put redacted arguments of tool calls on spans")
    record_results: bool = Field(default=False, description="put redacted results of tool calls on spans")
    tenants_in_metrics: int = Field(
        default=200, ge=0, le=2000, description="tenants with a label of their own; the others share `other`"
    )
    sandbox_usage_s: float = Field(
        default=0.0, ge=0, le=3600, description="interval of reading the sandboxes' resource usage; 0 is never"
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_an_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        try:
            parts = urlsplit(endpoint)
            known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port is not None
        except ValueError:
            known = False
        if not known:
            raise ValueError("http://HOST:PORT or https://HOST:PORT is expected, such as http://127.0.0.1:4317")
        return endpoint

    @model_validator(mode="after")
    def _serves_metrics_safely(self) -> Self:
        if self.metrics_listen is None:
            return self
        host, _, port = self.metrics_listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > _LAST_PORT:
            raise ValueError("metrics_listen: HOST:PORT is expected, such as 127.0.0.1:9464")
        if not self.metrics_beyond_loopback and not _loopback(host):
            raise ValueError(
                "metrics_listen: metrics name tenants and need no key: listen on 127.0.0.1, or set "
                "metrics_beyond_loopback: true behind a firewall"
            )
        return self

    @property
    def on(self) -> bool:
        return self.otlp_endpoint is not None or self.metrics_listen is not None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
