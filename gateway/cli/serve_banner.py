"""What `airlock serve` says once it answers: who is served where, on what, and how it is seen from outside."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from sqlalchemy import make_url

from gateway.config import Config
from gateway.serving.listening import is_loopback

_SHOWN = 6


def banner(config: Config, address: str, workers: int, metrics: Sequence[str]) -> RenderableType:
    """Return the banner; `metrics` are the addresses where the workers are scraped."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    for name, value in (
        ("tenants", _few(list(config.tenants))),
        ("database", make_url(config.resolved_database_url()).render_as_string(hide_password=True)),
        ("engine", config.sandbox.engine_url or "DOCKER_HOST or the default socket"),
        ("workers", str(workers)),
        ("transport", _transport(config, address)),
        ("metrics", _few(metrics)),
    ):
        rows.add_row(name, Text(value))
    title = Text.assemble(("airlock", "bold green"), " answers at ", (address, "bold"), "; Ctrl-C stops it")
    return Group(title, rows)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}" if names else "off"


def _transport(config: Config, address: str) -> str:
    if config.tls is not None:
        return "TLS, clients show certificates" if config.tls.requires_certificates else "TLS"
    return "plain text, on loopback only" if is_loopback(address) else "plain text beyond loopback: encrypt in front"
