"""The sections about operating a gateway: `admission`, `audit`, `recovery`, `retention`, `runs` and `telemetry`."""

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.section import Section, is_loopback

_LAST_PORT = 65_535


class AdmissionSettings(Section):
    """Limits of a process, and of each tenant within it."""

    calls_at_once: int = Field(default=256, ge=1, description="calls in progress, of all tenants")
    calls_at_once_under_load: int | None = Field(
        default=None,
        ge=1,
        description="calls started in the last 5 s while all processors are busy; unset means 8 per processor",
    )
    calls_at_once_per_tenant: int = Field(default=64, ge=1)
    queue_per_tenant: int = Field(default=256, ge=0, description="calls that may wait in the queue")
    queue_wait_s: float = Field(default=2.0, gt=0, description="a call that waits longer is refused")
    streams_per_tenant: int = Field(
        default=256, ge=1, description="open streams that watch, follow, move files or forward ports"
    )
    request_bytes: int = Field(default=512 * 1024 * 1024, ge=1, description="requests in memory, of all tenants")
    request_bytes_per_tenant: int = Field(default=64 * 1024 * 1024, ge=1)
    uploads: int = Field(default=128, ge=1, description="concurrent file uploads, of all tenants; more wait")
    uploads_per_tenant: int = Field(default=16, ge=1)
    answer_bytes: int = Field(default=1024 * 1024 * 1024, ge=1, description="answers that clients have not read yet")
    answer_bytes_per_tenant: int = Field(
        default=128 * 1024 * 1024, ge=1, description="above it new calls of the tenant are refused"
    )

    @model_validator(mode="after")
    def _one_fits_into_all(self) -> Self:
        if self.calls_at_once_per_tenant > self.calls_at_once:
            raise ValueError("calls_at_once_per_tenant is more than calls_at_once")
        return self


class AnchorSettings(Section):
    """Where the signed heads of the audit's chains are written: to `file` or `command`."""

    file: Path | None = Field(default=None, description="JSON lines are appended to it")
    command: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="a program and its arguments; it reads JSON lines from stdin"
    )
    key_file: Path = Field(description="an Ed25519 private key in PEM format that only the gateway can read")
    every_s: float = Field(default=60.0, ge=1, le=86_400, description="how often changed heads are written")

    @model_validator(mode="after")
    def _has_one_place(self) -> Self:
        if (self.file is None) == (self.command is None):
            raise ValueError("set either file or command: where anchors are written")
        return self


class AuditSettings(Section):
    """The audit."""

    anchor: AnchorSettings | None = Field(
        default=None,
        description="reveals a chain that the database's owner cut off or replaced",
        examples=["`anchor: {file: /mnt/log/airlock-anchors.jsonl, key_file: anchor.key}`"],
    )


class RunsSettings(Section):
    """How runs are hosted."""

    on_stop: Literal["hand_over", "cancel"] = Field(
        default="hand_over",
        description="a graceful shutdown hands live runs over to the next gateway that serves; cancel ends them",
    )


class RecoverySettings(Section):
    """How soon a gateway counts as lost."""

    lease_s: float = Field(
        default=5.0, ge=2.0, le=300.0, description="a gateway that does not renew its lease for this long is lost"
    )


class RetentionSettings(Section):
    """How long data is kept that no operation needs. Null keeps it for good; threads stay until they are deleted."""

    events_days: float | None = Field(
        default=None, gt=0, description="a run's events, from its end; the last event stays, since it has the outcome"
    )
    tool_calls_days: float | None = Field(default=None, gt=0, description="the journal of tool calls, from their end")
    runs_days: float | None = Field(
        default=None, gt=0, description="runs with their events and request ids, from their end"
    )
    messages_days: float | None = Field(
        default=None,
        gt=0,
        description="a thread's messages, from its last run; the thread, its metadata and its files stay",
    )
    approvals_days: float | None = Field(
        default=30.0, gt=0, description="resolved approvals with their exact arguments, and expired grants"
    )
    policy_changes_days: float | None = Field(
        default=None, gt=0, description="versions of a policy, from their replacement"
    )
    sandbox_transitions_days: float | None = Field(
        default=30.0, gt=0, description="the history of sandboxes: created, stopped, resumed, removed"
    )
    audit_days: float | None = Field(default=None, gt=0, description="the audit; its pruning is itself a record")
    request_results_hours: float = Field(
        default=24.0, gt=0, le=24.0, description="results of calls with a request id, for repeated requests"
    )


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
        if not self.metrics_beyond_loopback and not is_loopback(host):
            raise ValueError(
                "metrics_listen: metrics name tenants and need no key: listen on 127.0.0.1, or set "
                "metrics_beyond_loopback: true behind a firewall"
            )
        return self

    @property
    def on(self) -> bool:
        return self.otlp_endpoint is not None or self.metrics_listen is not None
