"""`airlock key`: API keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.init import add_key
from gateway.cli.terminal import Json, out, print_json, run_client

app = typer.Typer(help="API keys.", no_args_is_help=True)


@app.callback()
def keys() -> None:
    """API keys."""


@app.command()
def create(
    *,
    tenant: Annotated[str, typer.Option(help="Tenant the key speaks for.")] = "default",
    config: Annotated[Path, typer.Option(help="Configuration file.")] = Path("airlock.yaml"),
    as_json: Json = False,
) -> None:
    """Make a key. It is shown once; only its hash is stored."""
    from gateway.config import Config

    async def work() -> str:
        return await add_key(Config.load(config), tenant)

    secret = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"tenant": tenant, "key": secret})
    else:
        out.print(f"The key of tenant [bold]{tenant}[/], shown this once:\n\n  export AIRLOCK_API_KEY={secret}")
