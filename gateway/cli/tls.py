"""The options that every subcommand which talks to a gateway has in common: `airlock --tls-ca ca.pem tool ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def set_tls(
    *,
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
    if not (tls or ca or certificate or key or server_name):
        return
    from gateway.client.tls import AMBIENT, Tls

    AMBIENT.set(Tls(ca, certificate, key, server_name))
