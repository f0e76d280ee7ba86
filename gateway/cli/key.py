"""`airlock key`: API keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.backend import BackendCli
from gateway.cli.command import Commands
from gateway.cli.rows import Rows
from gateway.cli.terminal import fail, out

if TYPE_CHECKING:
    from gateway.client.admin import KeyInfo, MadeKey, RevokedKey

app = Commands(help="API keys: on the database of a configuration, or with --address on a gateway.")
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `airlock key list` shows it.")]
_SPAN = re.compile(r"(\d{1,9})([smhdw])")
_STATES = ("working", "expired", "revoked")
_COLUMNS = ("id", "key", "tenant", "scopes", "name", "made", "until")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@app.callback()
def keys() -> None:
    """API keys."""


@app.command()
async def create(
    cli: BackendCli,
    *,
    tenant: Annotated[str, typer.Option(help="Tenant the key speaks for.")] = "default",
    operator: Annotated[
        bool, typer.Option("--operator", help="An operator's key: tenants, keys, policies and the audit of all.")
    ] = False,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="run, tool, files, audit: each can be given; without this the first three. Or approve, alone. Of an "
            "operator's key: operate, audit."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="What to call it.")] = "",
    expires_in: Annotated[str, typer.Option(help="Such as 12h, 90d, 4w; for ever unless given.")] = "",
) -> None:
    """Make a key. It is shown once; only its hash is stored."""
    from gateway.credentials.keys import checked_scopes
    from gateway.errors import InvalidArgument

    expires_in_s = span_s(expires_in, "--expires-in")
    try:
        scopes = checked_scopes(scope, operator=operator) if scope else ()
    except InvalidArgument as error:
        fail(f"--{error}")
    async with cli.keys() as keys:
        made = await keys.create_key("" if operator else tenant, scopes=scopes, name=name, expires_in_s=expires_in_s)
    cli.show(_with_secret(made), lambda _: _show_made(made))


@app.command("list")
async def list_(
    cli: BackendCli,
    *,
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    scope: Annotated[str, typer.Option(help="Only those that have this scope.")] = "",
    state: Annotated[str, typer.Option(help="Only those that are working, expired or revoked.")] = "",
    ended: Annotated[bool, typer.Option("--all", help="Also revoked and expired ones.")] = False,
) -> None:
    """List keys, the newest first; never a secret."""
    from gateway.credentials.keys import SCOPES

    for option, given, there_are in (("--scope", scope, SCOPES), ("--state", state, _STATES)):
        if given and given not in there_are:
            fail(f"{option} {given!r}: one of {', '.join(there_are)} is expected")
    async with cli.keys() as keys:
        found = [one async for one in keys.keys(tenant, include_ended=ended, scope=scope, state=state)]
        if tenant and not found:
            await keys.tenant(tenant)  # one that is not there is an error, not an empty list
    cli.show(found, lambda _: out.print(_listed(found) if found else "no such key"))


@app.command()
async def revoke(
    cli: BackendCli,
    key_id: KeyId,
    *,
    cancel_runs: Annotated[
        bool, typer.Option("--cancel-runs", help="Also end the runs that it started; else they go on.")
    ] = False,
) -> None:
    """Make a key useless, on every gateway within a second, also for streams that are under way.

    Runs that it started go on, and the command says how many; with --cancel-runs they end.
    """
    async with cli.keys() as keys:
        found = await keys.revoke_key(key_id, cancel_runs=cancel_runs)
    cli.show(
        {**vars(found.key), "runs_under_way": found.runs_under_way},
        f"{found.key.shown} is revoked{_runs_left(found, cancelled=cancel_runs)}",
    )


def _runs_left(found: RevokedKey, *, cancelled: bool) -> str:
    if not found.runs_under_way:
        return ""
    runs = "1 run that it started" if found.runs_under_way == 1 else f"{found.runs_under_way} runs that it started"
    shown = f"`airlock runs list --started-by {found.key.shown}`"
    if cancelled:
        return f"\nto be ended: {runs}; {shown} shows how far that is"
    return f"\nnot ended: {runs}; {shown} shows them, `airlock key revoke {found.key.id} --cancel-runs` ends them"


@app.command()
async def rotate(
    cli: BackendCli,
    key_id: KeyId,
    *,
    overlap: Annotated[str, typer.Option(help="How long the old one still works, such as 1h; 30d at most.")] = "24h",
) -> None:
    """Make a key like another one, which goes on to work for a while."""
    overlap_s = span_s(overlap, "--overlap")
    async with cli.keys() as keys:
        made = await keys.rotate_key(key_id, overlap_s=overlap_s)
    cli.show(_with_secret(made), lambda _: _show_made(made))


def span_s(text: str, option: str) -> int:
    """Return a span such as 90d in seconds, 0 for none."""
    if not text:
        return 0
    found = _SPAN.fullmatch(text)
    if found is None or int(found[1]) == 0:
        fail(f"{option} {text!r}: a number and one of s, m, h, d, w is expected, such as 90d")
    return int(found[1]) * _SECONDS[found[2]]


def _listed(found: Sequence[KeyInfo]) -> Rows:
    rows = []
    for one in found:
        until = f"revoked {_day(one.revoked_at)}" if one.revoked_at else _day(one.expires_at)
        whose = one.tenant or "(operator)"
        rows.append((one.id, one.shown, whose, ",".join(one.scopes), one.name, _day(one.created_at), until))
    return Rows(_COLUMNS, rows)


def _with_secret(made: MadeKey) -> dict[str, Any]:
    return {**vars(made.key), "key": made.secret}


def _show_made(made: MadeKey) -> None:
    info = made.key
    whose = f"The key of tenant {info.tenant}" if info.tenant else "The operator's key"
    out.print(f"{whose} for {', '.join(info.scopes)}, shown this once:\n\n  export AIRLOCK_API_KEY={made.secret}")


def _day(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d}"
