"""Commands that work on a gateway, with an operator's key, or without one on the database of a configuration."""

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
    from gateway.cli.policy_backend import LayerVersions
    from gateway.client import Client

CONFIG = Path("airlock.yaml")
ConfigFile = Annotated[Path, typer.Option(help="Configuration file; its database is used, without a gateway.")]


def address_of(context: typer.Context, given: str) -> str:
    """Return the address that a command asks, "" for none: the option's, else the environment's where no file speaks.

    A configuration in this directory means its database, whatever the environment says.
    """
    source = context.get_parameter_source("config")
    if given or context.resilient_parsing or source is None or source.name != "DEFAULT" or CONFIG.exists():
        return given
    return os.environ.get("AIRLOCK_ADDRESS", "")


AtAddress = Annotated[
    str,
    typer.Option(
        "--address",
        help="HOST:PORT of a gateway, to ask it with an operator's key instead. Where neither this nor --config is "
        "given and no airlock.yaml is here, it is AIRLOCK_ADDRESS.",
        callback=address_of,
    ),
]


@dataclass
class BackendCli(GatewayCli):
    """A command that asks a gateway where an address is given, and else works on the configuration's database."""

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
    async def policies(self, layer: str) -> AsyncIterator[LayerVersions]:
        """Open the versions of a layer, which is a tenant's name or ""."""
        from gateway.cli.policy_backend import LayerVersions

        if self.address:
            from gateway.cli.policy_backend_remote import RemotePolicies

            yield LayerVersions(RemotePolicies(self.airlock), layer)
            return
        from gateway.cli.policy_backend_local import local_policies
        from gateway.config.config import Config

        async with local_policies(Config.load(self.config), layer) as policies:
            yield LayerVersions(policies, layer)
