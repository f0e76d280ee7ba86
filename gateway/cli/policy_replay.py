"""`airlock policy replay`: evaluate a candidate policy on recorded calls."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.backend import check_tenant
from gateway.cli.command import Cli
from gateway.cli.policy_files import (
    DEFAULT_CONFIG,
    ConfigFile,
    OperatorFile,
    compiled,
    read,
    read_operator,
    stored_layers,
)
from gateway.cli.policy_proof import change_as_json, print_changes
from gateway.cli.slow_work import SlowWork
from gateway.cli.terminal import EXIT_BAD_NEWS, out
from gateway.cli.time_options import moment

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.policy.judge import Policy
    from gateway.policy_versions.replay import Replayed

_NOT_REPLAYED = "rate limits, quotas and grants are not replayed"


async def replay(
    cli: Cli,
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="Policy file to evaluate.")],
    *,
    since_: Annotated[str, typer.Option("--since", help="Start of the period: 30m, 12h, 7d, 2w or a date.")] = "7d",
    tenant: Annotated[str | None, typer.Option(help="Tenant whose calls to replay; default: all tenants.")] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    operator: OperatorFile = None,
) -> None:
    """Show which verdicts on recorded calls a candidate would change. Exits with 1 if one changes.

    The operator's layer is the one in force, unless --operator names a file.
    """
    from gateway.config.config import Config
    from gateway.storage.policy_store import OPERATOR

    start = moment(since_, datetime.now(UTC))
    above = read_operator(operator)
    document = read(candidate, above).document
    settings = Config.load(config)
    if tenant is not None:
        check_tenant(settings, tenant)
    above = above or (await stored_layers(settings, OPERATOR)).get(OPERATOR)
    replayed = await _replay(compiled(document, above), settings, start, tenant)
    cli.show(_as_json(replayed), lambda _: _print(replayed))
    if replayed.tally.changed:
        raise typer.Exit(EXIT_BAD_NEWS)


async def _replay(candidate: Policy, config: Config, start: datetime, tenant: str | None) -> Replayed:
    from gateway.policy_versions.replay import replay as replayed_over
    from gateway.storage.database import Database
    from gateway.storage.recorded_calls import recorded_calls

    database = await Database.open(config.resolved_database_url())
    try:
        with SlowWork("reading the journal") as slow:
            recorded = recorded_calls(database, int(start.timestamp() * 1e6), tenant)
            return await replayed_over(candidate, recorded, lambda calls: slow.at(f"{calls:,} calls judged"))
    finally:
        await database.close()


def _as_json(replayed: Replayed) -> dict[str, object]:
    tally = replayed.tally
    return {
        "calls": tally.calls,
        "changed": tally.changed,
        "changes": [change_as_json(change) for change in tally.changes],
        "shadow": [change_as_json(change) for change in replayed.shadow.changes],
        "not_judged": dict(replayed.skipped),
        "note": _NOT_REPLAYED,
    }


def _print(replayed: Replayed) -> None:
    tally = replayed.tally
    print_changes(tally.changes)
    out.print(f"{tally.changed} of {tally.calls} verdicts change", style="yellow" if tally.changed else "green")
    if replayed.shadow.changed:
        out.print("\nalso, with the shadow rules enforced", style="bold")
        print_changes(replayed.shadow.changes)
    for why, calls in replayed.skipped.most_common():
        out.print(f"{calls} not judged: {why}", style="dim")
    out.print(_NOT_REPLAYED, style="dim")
