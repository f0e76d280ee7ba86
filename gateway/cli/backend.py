"""Commands that use a gateway with an operator's key, or else the database of a configuration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli, Key

if TYPE_CHECKING:
    from gateway.cli.key_backend import LocalKeys
    from gateway.cli.policy_backend import PolicyBackend
    from gateway.client import Client

CONFIG = Path("airlock.yaml")
ConfigFile = Annotated[Path, typer.Option(help="Configuration file, whose database is used directly.")]


def address_of(context: typer.Context, given: str) -> str:
    """Return the gateway's address, or "" to use the database.

    AIRLOCK_ADDRESS counts only if there is neither --address nor a configuration file.
    """
    source = context.get_parameter_source("config")
    if given or context.resilient_parsing or source is None or source.name != "DEFAULT" or CONFIG.exists():
        return given
    return os.environ.get("AIRLOCK_ADDRESS", "")


AtAddress = Annotated[
    str,
    typer.Option(
        "--address",
        help="Address of a gateway to use instead of the database, as HOST:PORT; needs an operator key. Without "
        "--config and ./airlock.yaml, the default is AIRLOCK_ADDRESS.",
        callback=address_of,
    ),
]


@dataclass
class BackendCli(GatewayCli):
    """The context of a command that calls a gateway if it has an address, and else uses the database."""

    address: AtAddress = ""
    key: Key = ""
    config: ConfigFile = CONFIG

    @contextlib.asynccontextmanager
    async def keys(self) -> AsyncIterator[Client | LocalKeys]:
        """Open the keys."""
        if self.address:
            yield self.airlock
            return
        from gateway.cli.key_backend import local_keys
        from gateway.config.config import Config

        async with local_keys(Config.load(self.config)) as keys:
            yield keys

    @contextlib.asynccontextmanager
    async def policies(self, layer: str) -> AsyncIterator[PolicyBackend]:
        """Open the versions of a layer: a tenant's name, or "" for the operator's."""
        from gateway.cli.policy_backend import RemotePolicies, local_policies
        from gateway.config.config import Config

        if self.address:
            yield RemotePolicies(self.airlock, layer)
            return
        async with local_policies(Config.load(self.config), layer) as policies:
            yield policies
