"""Commands that use a gateway with an operator's key, or else the database of a configuration."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli, Key

if TYPE_CHECKING:
    from gateway.client.admin import AdminCalls
    from gateway.config.config import Config

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

    @functools.cached_property
    def loaded(self) -> Config | None:
        """The configuration, None if a gateway is called."""
        from gateway.config.config import Config

        return None if self.address else Config.load(self.config)

    @contextlib.asynccontextmanager
    async def admin(self, by: str = "") -> AsyncIterator[AdminCalls]:
        """Open the calls of AdminService. Without a gateway, `by` or else the current user is who makes them."""
        if self.loaded is None:
            yield self.airlock
            return
        from gateway.cli.local_admin import local_admin

        async with local_admin(self.loaded, by) as admin:
            yield admin
