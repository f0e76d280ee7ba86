"""`airlock key`: API keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.init import add_keys
from gateway.cli.terminal import EXIT_USAGE, Json, fail, out, print_json, run_client

app = typer.Typer(help="API keys.", no_args_is_help=True)


@app.callback()
def keys() -> None:
    """API keys."""


@app.command()
def create(
    *,
    tenant: Annotated[str, typer.Option(help="Tenant the key speaks for.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="run, tool, files: each can be given, and all are without this. Or approve, alone."),
    ] = None,
    config: Annotated[Path, typer.Option(help="Configuration file.")] = Path("airlock.yaml"),
    as_json: Json = False,
) -> None:
    """Make a key. It is shown once; only its hash is stored."""
    from gateway.config import Config
    from gateway.errors import InvalidArgument
    from gateway.keys import ACTING_SCOPES, checked_scopes

    try:
        scopes = checked_scopes(scope or ACTING_SCOPES)
    except InvalidArgument as error:
        fail(f"--{error}", EXIT_USAGE, as_json=as_json)

    async def work() -> str:
        return (await add_keys(Config.load(config), tenant, scopes))[0]

    secret = run_client(work(), as_json=as_json)
    if as_json:
        print_json({"tenant": tenant, "key": secret, "scopes": list(scopes)})
        return
    whose = f"The key of tenant [bold]{tenant}[/] for {', '.join(scopes)}"
    out.print(f"{whose}, shown this once:\n\n  export AIRLOCK_API_KEY={secret}")
