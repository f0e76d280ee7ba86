"""`airlock`: the command line, with one module per subcommand, imported when the subcommand is used."""

import logging
from collections import UserDict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.command import Commands
from gateway.cli.plain_values import PlainGroup
from gateway.cli.terminal import out

# In the order of --help.
_COMMANDS = ("init", "serve", "run", "exec", "usage", "doctor", "bench", "uninstall", "engine-proxy")
_GROUPS = (
    *("runs", "thread", "files", "tool", "approvals", "audit", "process", "sandbox", "network", "key", "policy"),
    *("tenant", "model", "images", "mcp"),
)


class _Subcommands(UserDict[str, Any]):
    """The subcommands by name. Each is made when it is used: one costs tens of milliseconds, and a call needs one."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys((*_COMMANDS, *_GROUPS)))

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _subcommand(name)
        return self.data[name]


class _Airlock(PlainGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Subcommands()


def _subcommand(name: str) -> Any:
    """Return the command or group of a name."""
    only = Commands()
    if name == "run":
        from gateway.cli import runs

        only.command(name)(runs.run)
    elif name == "exec":
        from gateway.cli import process

        only.command(name, cls=process.ExecCommand, context_settings=process.START_SETTINGS)(process.exec_)
    elif name in _GROUPS:
        only.add_typer(import_module(f"gateway.cli.{name}").app, name=name)
    else:
        function = name.replace("-", "_")
        only.command(name)(getattr(import_module(f"gateway.cli.{function}"), function))
    return typer.main.get_group(only).commands[name]


def _version(value: bool) -> None:
    if value:
        from gateway.support.version import airlock_version

        out.print(f"airlock {airlock_version()}")
        raise typer.Exit


def global_options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", envvar="AIRLOCK_TLS", help="Connect to the gateway over TLS.")] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca",
            envvar="AIRLOCK_TLS_CA",
            help="CA certificates that the gateway's certificate is verified with, as PEM.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--tls-certificate", envvar="AIRLOCK_TLS_CERTIFICATE", help="Client certificate, as PEM."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--tls-key", envvar="AIRLOCK_TLS_KEY", help="Private key of the client certificate.")
    ] = None,
    server_name: Annotated[
        str,
        typer.Option(
            "--tls-server-name",
            envvar="AIRLOCK_TLS_SERVER_NAME",
            help="Name in the gateway's certificate, if it is not the host of the address.",
        ),
    ] = "",
) -> None:
    """Airlock: a sandboxed, multi-tenant tool-execution gateway."""
    del version  # handled by its callback
    if not (tls or ca or certificate or key or server_name):
        return
    from airlock.connection import AMBIENT, Tls

    AMBIENT.set(Tls(ca, certificate, key, server_name))


app = Commands(
    cls=_Airlock,
    help="Airlock: a sandboxed, multi-tenant tool-execution gateway.",
    pretty_exceptions_enable=False,
)
app.callback()(global_options)

# Only serve has a log (gateway/telemetry/logging.py); the other commands report errors themselves. Without this handler
# the standard library would print the engine's log records to stderr.
logging.getLogger("sandbox").addHandler(logging.NullHandler())


def main() -> None:
    """Run the command line."""
    app()
