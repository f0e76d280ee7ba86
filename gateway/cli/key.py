"""`airlock key`: API keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import UNITS_S, BackendCli, Commands
from gateway.cli.printable import Rows
from gateway.cli.terminal import fail
from gateway.credentials.keys import SCOPES, checked_scopes
from gateway.errors import InvalidArgument

if TYPE_CHECKING:
    from airlock.admin import KeyInfo, MadeKey, RevokedKey

app = Commands(help="API keys, in the database of a configuration or, with --address, on a gateway.")
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id, as listed by `airlock key list`.")]
_SPAN = re.compile(r"(\d{1,9})([smhdw])")


@app.command()
async def create(
    cli: BackendCli,
    *,
    tenant: Annotated[str, typer.Option(help="Tenant of the key.")] = "default",
    operator: Annotated[
        bool, typer.Option("--operator", help="Create an operator key: tenants, keys, policies and all audit records.")
    ] = False,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="run, tool, files or audit, repeatable (default: the first three); or approve alone. For an operator "
            "key: operate or audit."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the key.")] = "",
    expires_in: Annotated[str, typer.Option(help="Lifetime, such as 12h, 90d or 4w; default: unlimited.")] = "",
) -> None:
    """Create a key and print it once; only its hash is stored."""
    expires_in_s = span_s(expires_in, "--expires-in")
    try:
        scopes = checked_scopes(scope, operator=operator) if scope else ()
    except InvalidArgument as error:
        fail(f"--{error}")
    async with cli.admin() as keys:
        made = await keys.create_key("" if operator else tenant, scopes=scopes, name=name, expires_in_s=expires_in_s)
    _show_made(cli, made)


@app.command("list")
async def list_(
    cli: BackendCli,
    *,
    tenant: Annotated[str, typer.Option(help="Filter by tenant.")] = "",
    scope: Annotated[str, typer.Option(help="Filter by scope.")] = "",
    state: Annotated[str, typer.Option(help="Filter by state: working, expired or revoked.")] = "",
    ended: Annotated[bool, typer.Option("--all", help="Include revoked and expired keys.")] = False,
) -> None:
    """List keys, newest first, without their secrets."""
    for option, given, there_are in (("--scope", scope, SCOPES), ("--state", state, ("working", "expired", "revoked"))):
        if given and given not in there_are:
            fail(f"{option} {given!r} is not one of {', '.join(there_are)}")
    async with cli.admin() as keys:
        found = [one async for one in keys.keys(tenant, include_ended=ended, scope=scope, state=state)]
        if tenant and not found:
            await keys.tenant(tenant)  # an unknown tenant is an error, not an empty list
    cli.show(found, _listed(found) if found else "no keys")


@app.command()
async def revoke(
    cli: BackendCli,
    key_id: KeyId,
    *,
    cancel_runs: Annotated[bool, typer.Option("--cancel-runs", help="Also cancel the runs that it started.")] = False,
) -> None:
    """Revoke a key on every gateway within a second, including its open streams.

    Runs that it started continue, and their number is printed; --cancel-runs cancels them.
    """
    async with cli.admin() as keys:
        found = await keys.revoke_key(key_id, cancel_runs=cancel_runs)
    said = f"revoked {found.key.shown}{_runs_left(found, cancelled=cancel_runs)}"
    cli.show({**vars(found.key), "runs_under_way": found.runs_under_way}, said)


def _runs_left(found: RevokedKey, *, cancelled: bool) -> str:
    if not found.runs_under_way:
        return ""
    runs = "1 run that it started" if found.runs_under_way == 1 else f"{found.runs_under_way} runs that it started"
    shown = f"`airlock runs list --started-by {found.key.shown}`"
    if cancelled:
        return f"\ncancelling {runs}; {shown} shows the progress"
    return f"\nstill active: {runs}; {shown} lists them, `airlock key revoke {found.key.id} --cancel-runs` cancels them"


@app.command()
async def rotate(
    cli: BackendCli,
    key_id: KeyId,
    *,
    overlap: Annotated[str, typer.Option(help="How long the old key still works, such as 1h; at most 30d.")] = "24h",
) -> None:
    """Create a replacement for a key, which keeps working for a while."""
    overlap_s = span_s(overlap, "--overlap")
    async with cli.admin() as keys:
        made = await keys.rotate_key(key_id, overlap_s=overlap_s)
    _show_made(cli, made)


def span_s(text: str, option: str) -> int:
    """Parse a duration such as 90d into seconds; an empty one is 0."""
    if not text:
        return 0
    found = _SPAN.fullmatch(text)
    if found is None or int(found[1]) == 0:
        fail(f"{option} {text!r} is not a number with one of s, m, h, d, w, such as 90d")
    return int(found[1]) * UNITS_S[found[2]]


def _listed(found: Sequence[KeyInfo]) -> Rows:
    rows = []
    for one in found:
        until = f"revoked {_day(one.revoked_at)}" if one.revoked_at else _day(one.expires_at)
        whose = one.tenant or "(operator)"
        rows.append((one.id, one.shown, whose, ",".join(one.scopes), one.name, _day(one.created_at), until))
    return Rows(("id", "key", "tenant", "scopes", "name", "created", "until"), rows)


def _show_made(cli: BackendCli, made: MadeKey) -> None:
    info = made.key
    whose = f"The key of tenant {info.tenant}" if info.tenant else "The operator's key"
    said = f"{whose} for {', '.join(info.scopes)}, shown this once:\n\n  export AIRLOCK_API_KEY={made.secret}"
    cli.show({**vars(info), "key": made.secret}, said)


def _day(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d}"
