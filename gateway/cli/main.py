"""`airlock`: the command line, with one module per subcommand."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli import (
    approvals,
    audit,
    bench,
    doctor,
    engine_proxy,
    files,
    init,
    key,
    network,
    policy,
    process,
    runs,
    sandbox,
    serve,
    tenant,
    thread,
    tool,
    uninstall,
)
from gateway.cli.command import Commands
from gateway.cli.terminal import out
from gateway.support.version import airlock_version


def _version(value: bool) -> None:
    if value:
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
    from gateway.client.connection import AMBIENT, Tls

    AMBIENT.set(Tls(ca, certificate, key, server_name))


app = Commands(help="Airlock: a sandboxed, multi-tenant tool-execution gateway.", pretty_exceptions_enable=False)
app.callback()(global_options)
app.command("init")(init.init)
app.command("serve")(serve.serve)
app.command("run")(runs.run)
app.command("exec", cls=process.ExecCommand, context_settings=process.START_SETTINGS)(process.exec_)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("uninstall")(uninstall.uninstall)
app.command("engine-proxy")(engine_proxy.engine_proxy)
for group in (runs, thread, files, tool, approvals, audit, process, sandbox, network, key, policy, tenant):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])

# Only serve has a log (gateway/telemetry/logging.py); the other commands report errors themselves. Without this handler
# the standard library would print the engine's log records to stderr.
logging.getLogger("sandbox").addHandler(logging.NullHandler())


def main() -> None:
    """Run the command line."""
    app()
