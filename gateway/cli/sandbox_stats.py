"""`airlock sandbox stats` and `top`: the resource usage of sandboxes, once or live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import GatewayCli, OfThread
from gateway.cli.rows import Rows
from gateway.cli.terminal import out, print_json

if TYPE_CHECKING:
    from gateway.client import DiskStats, SandboxStats

# The time between two readings from which CPU usage is computed.
_GAP_S = 0.5
_UNKNOWN = "?"
# Powers of 1,024, abbreviated to fit eight columns.
_UNITS = ("", "K", "M", "G", "T")


async def stats(cli: GatewayCli, *, thread: OfThread = "") -> None:
    """Show current resource usage, CPU over half a second; ? means unknown, + means at least."""
    readings = [one async for one in cli.airlock.watch_sandbox_stats(thread or None, interval_s=_GAP_S, readings=2)]
    found = readings[-1] if readings else ()
    cli.show({"sandboxes": found}, table(found))


async def top(
    cli: GatewayCli,
    *,
    thread: OfThread = "",
    interval: Annotated[
        float, typer.Option("--interval-s", min=0.5, max=60, help="Seconds between two readings.")
    ] = 2.0,
    count: Annotated[int, typer.Option("--readings", min=0, help="Number of readings; 0 continues until Ctrl-C.")] = 0,
) -> None:
    """Show resource usage live, with --json one line per reading; ? means unknown, + means at least."""
    from rich.live import Live

    readings = cli.airlock.watch_sandbox_stats(thread or None, interval_s=interval, readings=count)
    if cli.as_json:
        async for found in readings:
            print_json({"sandboxes": found})
        return
    with Live(console=out, auto_refresh=False) as live:
        async for found in readings:
            live.update(table(found), refresh=True)


def table(found: Sequence[SandboxStats]) -> Rows:
    """Return a row per sandbox, highest CPU usage first."""
    names = ("thread", "cpus", "cpu time", "memory", "pids", "workspace", "tmp", "calls")
    rows = [
        (
            one.thread,
            _of(_number(one.cpus), None if one.cpus_limit is None else f"{one.cpus_limit:g}"),
            _UNKNOWN if one.cpu_s is None else f"{one.cpu_s:,.1f}s",
            _of(_size(one.memory_bytes), None if one.memory_limit_bytes is None else _size(one.memory_limit_bytes)),
            _of(_UNKNOWN if one.pids is None else str(one.pids), one.pids_limit),
            _disk(one.workspace),
            _disk(one.tmp),
            str(one.calls),
        )
        for one in sorted(found, key=lambda one: (-(one.cpus or 0.0), one.thread))
    ]
    return Rows(names, rows)


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.2f}"


def _of(used: str, limit: str | int | None) -> str:
    return used if limit is None or used == _UNKNOWN else f"{used}/{limit}"


def _disk(disk: DiskStats | None) -> str:
    if disk is None:
        return _UNKNOWN
    used = _size(disk.used_bytes) + ("+" if disk.partial else "")
    return _of(used, None if disk.limit_bytes is None else _size(disk.limit_bytes))


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return _UNKNOWN
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f}" if unit == 0 else f"{size:.1f}{_UNITS[unit]}"
