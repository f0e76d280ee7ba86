"""What `airlock serve` says once it answers: who is served where, on what, and how it is seen from outside."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from sqlalchemy import make_url

from gateway.config import Config
from gateway.serving.listening import is_loopback

_SHOWN_TENANTS = 6


def banner(config: Config, address: str, workers: int) -> RenderableType:
    """Return the banner."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    names = list(config.tenants)
    more = f" and {len(names) - _SHOWN_TENANTS} more" if len(names) > _SHOWN_TENANTS else ""
    for name, value in (
        ("tenants", f"{', '.join(names[:_SHOWN_TENANTS])}{more}"),
        ("database", make_url(config.resolved_database_url()).render_as_string(hide_password=True)),
        ("engine", config.sandbox.engine_url or "DOCKER_HOST or the default socket"),
        ("workers", str(workers)),
        ("transport", _transport(config, address)),
        ("metrics", config.telemetry.metrics_listen or "off"),
    ):
        rows.add_row(name, Text(value))
    title = Text.assemble(("airlock", "bold green"), " answers at ", (address, "bold"), "; Ctrl-C stops it")
    return Group(title, rows)


def _transport(config: Config, address: str) -> str:
    if config.tls is not None:
        return "TLS, clients show certificates" if config.tls.requires_certificates else "TLS"
    return "plain text, on loopback only" if is_loopback(address) else "plain text beyond loopback: encrypt in front"
