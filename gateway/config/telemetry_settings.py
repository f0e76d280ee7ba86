"""The section `telemetry` of the configuration. Nothing is told to anybody until it says to whom."""

from __future__ import annotations

import ipaddress
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Section

_LAST_PORT = 65_535


class TelemetrySettings(Section):
    """Where spans and metrics go, and how much is in them."""

    otlp_endpoint: str | None = Field(
        default=None, description="http(s)://HOST:PORT of an OTLP receiver over gRPC; unset means no spans"
    )
    metrics_listen: str | None = Field(
        default=None, description="HOST:PORT for Prometheus, a worker's port is PORT + its index; unset means none"
    )
    metrics_beyond_loopback: bool = Field(
        default=False, description="whether metrics_listen may be an address that other machines reach"
    )
    sample_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="how many of the traces that begin here are kept; a client's own word counts",
    )
    record_arguments: bool = Field(default=False, description="puts the arguments of tool calls on spans, redacted")
    record_results: bool = Field(default=False, description="puts the results of tool calls on spans, redacted")
    tenants_in_metrics: int = Field(
        default=200, ge=0, le=2000, description="tenants with a label of their own; the others share `other`"
    )
    sandbox_usage_s: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="how often what the sandboxes use together is read, each for some milliseconds; 0 is never",
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
    def _is_not_open_to_all(self) -> Self:
        if self.metrics_listen is None:
            return self
        host, _, port = self.metrics_listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > _LAST_PORT:
            raise ValueError("metrics_listen: HOST:PORT is expected, such as 127.0.0.1:9464")
        if not self.metrics_beyond_loopback and not _loopback(host):
            raise ValueError(
                "metrics_listen: metrics name tenants and are served to whoever asks: listen on 127.0.0.1, or set "
                "metrics_beyond_loopback: true where a firewall keeps others away"
            )
        return self

    @property
    def on(self) -> bool:
        """Whether anything is told to anybody."""
        return self.otlp_endpoint is not None or self.metrics_listen is not None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
