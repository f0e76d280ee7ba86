"""`airlock key`: API keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.key_backend import CONFIG, AtAddress, ConfigFile, key_desk
from gateway.cli.rows import Rows
from gateway.cli.terminal import EXIT_USAGE, Json, Key, fail, out, print_json, run_client

if TYPE_CHECKING:
    from gateway.client.admin import KeyInfo, MadeKey, RevokedKey

app = typer.Typer(
    help="API keys: on the database of a configuration, or with --address on a gateway.", no_args_is_help=True
)
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `airlock key list` shows it.")]
_SPAN = re.compile(r"(\d{1,9})([smhdw])")
_STATES = ("working", "expired", "revoked")
_COLUMNS = ("id", "key", "tenant", "scopes", "name", "made", "until")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@app.callback()
def keys() -> None:
    """API keys."""


@app.command()
def create(
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
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Make a key. It is shown once; only its hash is stored."""
    from gateway.credentials.keys import checked_scopes
    from gateway.errors import InvalidArgument

    expires_in_s = span_s(expires_in, "--expires-in", as_json=as_json)
    try:
        scopes = checked_scopes(scope, operator=operator) if scope else ()
    except InvalidArgument as error:
        fail(f"--{error}", EXIT_USAGE, as_json=as_json)

    async def work() -> MadeKey:
        async with key_desk(config, address, key) as desk:
            whose = "" if operator else tenant
            return await desk.create_key(whose, scopes=scopes, name=name, expires_in_s=expires_in_s)

    _show_made(run_client(work(), as_json=as_json), as_json=as_json)


@app.command("list")
def list_(
    *,
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    scope: Annotated[str, typer.Option(help="Only those that have this scope.")] = "",
    state: Annotated[str, typer.Option(help="Only those that are working, expired or revoked.")] = "",
    ended: Annotated[bool, typer.Option("--all", help="Also revoked and expired ones.")] = False,
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List keys, the newest first; never a secret."""
    from gateway.credentials.keys import SCOPES

    for option, given, there_are in (("--scope", scope, SCOPES), ("--state", state, _STATES)):
        if given and given not in there_are:
            fail(f"{option} {given!r}: one of {', '.join(there_are)} is expected", EXIT_USAGE, as_json=as_json)

    async def work() -> list[KeyInfo]:
        async with key_desk(config, address, key) as desk:
            found = [one async for one in desk.keys(tenant, include_ended=ended, scope=scope, state=state)]
            if tenant and not found:
                await desk.tenant(tenant)  # one that is not there is an error, not an empty list
            return found

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json([_as_json(one) for one in found])
        return
    if not found:
        out.print("no such key")
        return
    out.print(_listed(found))


@app.command()
def revoke(
    key_id: KeyId,
    *,
    cancel_runs: Annotated[
        bool, typer.Option("--cancel-runs", help="Also end the runs that it started; else they go on.")
    ] = False,
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Make a key useless, on every gateway within a second, also for streams that are under way.

    Runs that it started go on, and the command says how many; with --cancel-runs they end.
    """

    async def work() -> RevokedKey:
        async with key_desk(config, address, key) as desk:
            return await desk.revoke_key(key_id, cancel_runs=cancel_runs)

    found = run_client(work(), as_json=as_json)
    if as_json:
        print_json({**_as_json(found.key), "runs_under_way": found.runs_under_way})
        return
    out.print(f"{found.key.shown} is revoked", markup=False)
    if found.runs_under_way:
        out.print(_runs_left(found, cancelled=cancel_runs), markup=False)


def _runs_left(found: RevokedKey, *, cancelled: bool) -> str:
    runs = "1 run that it started" if found.runs_under_way == 1 else f"{found.runs_under_way} runs that it started"
    shown = f"`airlock runs list --started-by {found.key.shown}`"
    if cancelled:
        return f"to be ended: {runs}; {shown} shows how far that is"
    return f"not ended: {runs}; {shown} shows them, `airlock key revoke {found.key.id} --cancel-runs` ends them"


@app.command()
def rotate(
    key_id: KeyId,
    *,
    overlap: Annotated[str, typer.Option(help="How long the old one still works, such as 1h; 30d at most.")] = "24h",
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Make a key like another one, which goes on to work for a while."""
    overlap_s = span_s(overlap, "--overlap", as_json=as_json)

    async def work() -> MadeKey:
        async with key_desk(config, address, key) as desk:
            return await desk.rotate_key(key_id, overlap_s=overlap_s)

    _show_made(run_client(work(), as_json=as_json), as_json=as_json)


def span_s(text: str, option: str, *, as_json: bool) -> int:
    """Return a span such as 90d in seconds, 0 for none."""
    if not text:
        return 0
    found = _SPAN.fullmatch(text)
    if found is None or int(found[1]) == 0:
        fail(
            f"{option} {text!r}: a number and one of s, m, h, d, w is expected, such as 90d",
            EXIT_USAGE,
            as_json=as_json,
        )
    return int(found[1]) * _SECONDS[found[2]]


def _listed(found: Sequence[KeyInfo]) -> Rows:
    rows = []
    for one in found:
        until = f"revoked {_day(one.revoked_at)}" if one.revoked_at else _day(one.expires_at)
        whose = one.tenant or "(operator)"
        rows.append((one.id, one.shown, whose, ",".join(one.scopes), one.name, _day(one.created_at), until))
    return Rows(_COLUMNS, rows)


def _show_made(made: MadeKey, *, as_json: bool) -> None:
    info = made.key
    if as_json:
        print_json({**_as_json(info), "key": made.secret})
        return
    whose = f"The key of tenant {info.tenant}" if info.tenant else "The operator's key"
    out.print(f"{whose} for {', '.join(info.scopes)}, shown this once:\n\n  export AIRLOCK_API_KEY={made.secret}")


def _as_json(key: KeyInfo) -> dict[str, Any]:
    told = asdict(key)
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in told.items()}


def _day(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d}"
