"""The options before the subcommand: `airlock --version`, and TLS, `airlock --tls-ca ca.pem tool ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _version(value: bool) -> None:
    if value:
        from gateway.cli.terminal import out
        from gateway.support.version import airlock_version

        out.print(f"airlock {airlock_version()}")
        raise typer.Exit


def set_up(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", envvar="AIRLOCK_TLS", help="Talk TLS to the gateway.")] = False,
    ca: Annotated[
        Path | None, typer.Option("--tls-ca", envvar="AIRLOCK_TLS_CA", help="Who signed the gateway's certificate.")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--tls-certificate", envvar="AIRLOCK_TLS_CERTIFICATE", help="Certificate to show the gateway."),
    ] = None,
    key: Annotated[Path | None, typer.Option("--tls-key", envvar="AIRLOCK_TLS_KEY", help="Its key.")] = None,
    server_name: Annotated[
        str,
        typer.Option("--tls-server-name", envvar="AIRLOCK_TLS_SERVER_NAME", help="Name in the gateway's certificate."),
    ] = "",
) -> None:
    """Airlock: a sandboxed, multi-tenant tool-execution gateway."""
    del version  # its callback has done it
    if not (tls or ca or certificate or key or server_name):
        return
    from gateway.client.tls import AMBIENT, Tls

    AMBIENT.set(Tls(ca, certificate, key, server_name))
