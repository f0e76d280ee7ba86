"""`airlock usage`: what a tenant's agents used of models, in tokens and money."""

from __future__ import annotations

from datetime import UTC
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.command import GatewayCli, Until, moment_of
from gateway.cli.printable import Rows, one_line
from gateway.cli.terminal import fail
from gateway.cli.usage_view import dollars, tokens_in, tokens_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client import UsageTotal

# UsageGroup of gateway.client, whose import is slow and would delay every command.
_Group = StrEnum("_Group", ("day", "model", "agent"))


async def usage(
    cli: GatewayCli,
    *,
    tenant: Annotated[str, typer.Option(help="Tenant; needed with an operator key, and only with one.")] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From this day on, in UTC: 7d, 2w, a date or a time.")
    ] = "7d",
    until: Until = "",
    by: Annotated[str, typer.Option(metavar="GROUPS", help="Group by day, model, agent, or several: day,model.")] = "",
) -> None:
    """Show a tenant's use of models: requests, tokens, and their cost at the configured prices.

    Failed and lost requests count too. Tokens that an endpoint did not report are estimated from the characters.
    """
    groups: Any = [name for name in by.replace(" ", "").split(",") if name]
    if unknown := [name for name in groups if name not in list(_Group)]:
        fail(f"--by: {unknown[0]!r} is not one of {', '.join(_Group)}")
    times = {"since": moment_of("--since", since), "until": moment_of("--until", until)}
    found = await cli.airlock.usage(tenant=tenant, by=groups, **times)
    cli.show(found, _rows(found, groups) if found else "no usage in this time")


def _rows(found: Sequence[UsageTotal], groups: Sequence[str]) -> Rows:
    shown = {
        "day": lambda total: f"{total.day_at.astimezone(UTC):%Y-%m-%d}",
        "model": lambda total: one_line(total.model, 40),
        "agent": lambda total: one_line(total.agent, 40),
    }
    named = [name for name in shown if name in groups]
    amounts = ("requests", "in (cached)", "out (reasoning)", "estimated", "cost")
    rows = []
    for total in found:
        usage = total.usage
        counted = (f"{usage.requests:,}", tokens_in(usage), tokens_out(usage), f"{usage.estimated_tokens:,}")
        rows.append((*(shown[name](total) for name in named), *counted, dollars(usage)))
    return Rows((*named, *amounts), rows)
