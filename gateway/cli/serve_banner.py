"""The banner that `airlock serve` prints when it is ready."""

from collections.abc import Sequence

from rich.text import Text

from gateway.config.config import Config
from gateway.serving.listening import is_loopback
from gateway.storage.connecting import shown
from gateway.support.version import airlock_version

_SHOWN = 6
_NAME_CHARS = 11


def banner(config: Config, address: str, workers: int, metrics: Sequence[str]) -> Text:
    """Return the banner; `metrics` are the metrics addresses of the workers."""
    lines = [
        Text.assemble(
            ("airlock", "bold green"),
            f" {airlock_version()} is listening on ",
            (address, "bold"),
            "; press Ctrl-C to stop",
        )
    ]
    for name, value in (
        ("tenants", _few(list(config.tenants))),
        ("database", shown(config.resolved_database_url())),
        ("engine", _engine(config)),
        ("workers", str(workers)),
        ("transport", _transport(config, address)),
        ("metrics", _few(metrics)),
    ):
        lines.append(Text.assemble((f"{name:<{_NAME_CHARS}}", "dim"), value))
    return Text("\n").join(lines)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}" if names else "off"


def _engine(config: Config) -> str:
    if config.sandbox.engine == "memory":
        return "memory: commands run unconfined on this machine"
    return f"Docker at {config.sandbox.engine_url or 'DOCKER_HOST or the default socket'}"


def _transport(config: Config, address: str) -> str:
    if config.tls is not None:
        return "TLS with client certificates" if config.tls.requires_certificates else "TLS"
    return (
        "plain text, loopback only" if is_loopback(address) else "plain text beyond loopback: use a proxy that encrypts"
    )
