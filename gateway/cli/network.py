"""`airlock network`: the connections of sandboxes, and a proof of what a sandbox reaches."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gateway.cli import network_probe
from gateway.cli.command import Commands, GatewayCli, InThread, Limit, OfThread, Since, Until, moment_of
from gateway.cli.printable import Rows, local_time, one_line
from gateway.cli.terminal import SlowWork, fail, out, print_json
from gateway.errors import PermissionDenied, ScopeMissing

if TYPE_CHECKING:
    from airlock.audit import AuditQuery
    from airlock.audit_chain import AuditRecord
    from gateway.client import ProgramResult

_KIND = "connection"
_NAMES = ("at", "thread", "host", "address", "verdict", "outcome", "up", "down", "credential")
_STYLES = {"deny": "red", "allow": "green"}
_PROBE = Path(network_probe.__file__)
_REACH = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):[0-9]{1,5}")

app = Commands(help="The network of sandboxes: what connected where, and what a sandbox reaches.")

OfTenant = Annotated[str, typer.Option("--tenant", help="Tenant to read (operator keys only).")]


@dataclass(frozen=True)
class Connections:
    """Filters of connections."""

    thread: OfThread = ""
    host: Annotated[
        str, typer.Option("--host", help="Filter by host: a name or address, or *.NAME for all names below one.")
    ] = ""
    denied: Annotated[bool, typer.Option("--denied", help="Only connections that the policy refused.")] = False
    since: Since = ""
    until: Until = ""

    def query(self) -> AuditQuery:
        from airlock.audit import AuditQuery

        return AuditQuery(
            kinds=(_KIND,),
            thread=self.thread,
            verdict="deny" if self.denied else "",
            since=moment_of("--since", self.since),
            until=moment_of("--until", self.until),
        )

    def match(self, record: AuditRecord) -> bool:
        """Return whether a record is of the host that is asked for."""
        wanted = self.host.lower().strip("[]").removesuffix(".")
        host = str(json.loads(record.details).get("host", ""))
        return not wanted or (host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted)


@app.command()
async def log(
    cli: GatewayCli,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the last ten, then new ones until Ctrl-C.")
    ] = False,
    connections: Connections,
    limit: Limit = 50,
    tenant: OfTenant = "",
) -> None:
    """List connections, newest first; with --json, one per line. Needs a key with the scope audit.

    A connection is listed once it is over. `up` and `down` are the bytes that tool code sent and received, `?` if the
    gateway was lost meanwhile (`interrupted`).
    """
    if follow and connections.until:
        fail("use only one of --follow and --until")
    newest_first = [one async for one in _matching(cli, connections, tenant, 10 if follow else limit)]
    if follow:
        await _follow(cli, connections, tenant, newest_first[::-1])
    elif cli.as_json:
        for record in newest_first:
            print_json(_document(record))
    else:
        out.print(Rows(_NAMES, [_cells(one) for one in newest_first]) if newest_first else "no matching connections")


async def _matching(cli: GatewayCli, connections: Connections, tenant: str, limit: int) -> AsyncIterator[AuditRecord]:
    left = limit
    async for record in cli.airlock.list_audit(connections.query(), tenant=tenant):
        if connections.match(record):
            yield record
            left -= 1
        if not left:
            return


async def _follow(cli: GatewayCli, connections: Connections, tenant: str, last: Sequence[AuditRecord]) -> None:
    for record in last:
        _show(cli, record)
    begin = last[-1].sequence + 1 if last else 0
    async for record in cli.airlock.tail_audit(connections.query(), tenant=tenant, from_sequence=begin):
        if connections.match(record):
            _show(cli, record)


def _show(cli: GatewayCli, record: AuditRecord) -> None:
    line = Text("  ").join(cell for cell in _cells(record) if cell.plain)
    cli.show(_document(record) if cli.as_json else {}, line)


def _document(record: AuditRecord) -> dict[str, Any]:
    details = json.loads(record.details)
    nothing = {"host": "", "port": 0, "address": "", "bytes_up": 0, "bytes_down": 0, "credential": "", "reason": ""}
    return {
        "at": datetime.fromtimestamp(record.at_us / 1_000_000, UTC).isoformat(timespec="milliseconds"),
        "sequence": record.sequence,
        "actor": record.actor,
        "thread": record.thread,
        "run_id": record.run_id,
        "call_id": record.call_id,
        **nothing,
        **details,
        "verdict": record.verdict,
        "rule": record.rule,
        "outcome": record.outcome,
        "duration_ms": record.duration_us / 1000,
    }


def _cells(record: AuditRecord) -> list[Text]:
    one = _document(record)
    host = f"[{one['host']}]" if ":" in str(one["host"]) else one["host"]
    rule = f" by {record.rule}" if record.rule else ""
    return [
        Text(local_time(datetime.fromtimestamp(record.at_us / 1_000_000, UTC), seconds=True)),
        Text(one_line(record.thread)),
        Text(one_line(f"{host}:{one['port']}")),
        Text(one_line(one["address"])),
        Text(one_line(f"{record.verdict}{rule}"), style=_STYLES.get(record.verdict, "")),
        Text(one_line(record.outcome)),
        *(Text("?" if one[name] is None else f"{one[name]:,}") for name in ("bytes_up", "bytes_down")),
        Text(one_line(one["credential"])),
    ]


@app.command()
async def verify(
    cli: GatewayCli,
    *,
    thread: InThread = "default",
    reach: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="What must be reached through the proxy; repeatable."),
    ] = None,
) -> None:
    """Test from inside a thread's sandbox what it reaches. Exits with 1 if a check fails.

    Runs `python3 -` there, which the policy must allow. Nothing may be reached directly, by TCP, UDP, IPv6, raw sockets
    or DNS; also not a port on this machine's loopback, where another tenant's forward would listen. If the policy lets
    hosts be reached, the proxy must refuse all others, loopback, private addresses and metadata services, and must
    reach the hosts of --reach. `airlock network log` lists what was tried through the proxy.
    """
    for target in reach or ():
        if not _REACH.fullmatch(target):
            fail(f"--reach {target!r} is not HOST:PORT, such as pypi.org:443")
    try:
        with SlowWork(f"trying what the sandbox of thread {thread} reaches"):
            async with _like_a_forward() as forward:
                arguments = ["python3", "-", forward, *(reach or ())]
                ended = await cli.airlock.run_program(arguments, thread=thread, stdin=_PROBE)
    except ScopeMissing:
        raise
    except PermissionDenied as error:
        raise PermissionDenied(f"verify runs `python3 -` in the sandbox: {error}", **error.details) from error
    checks = _checks(ended)
    whole = all(one["ok"] for one in checks)
    cli.show({"ok": whole, "checks": checks}, lambda _: out.print(_table(checks)), bad_news=not whole)


@asynccontextmanager
async def _like_a_forward() -> AsyncIterator[str]:
    """Listen as `airlock sandbox forward` does, and send SECRET to each client; yield PORT/SECRET."""
    secret = secrets.token_hex(16)

    def connect(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(secret.encode())
        writer.close()

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        yield f"{server.sockets[0].getsockname()[1]}/{secret}"


def _checks(ended: ProgramResult) -> list[dict[str, Any]]:
    if ended.outcome == "failed_to_start":
        fail(f"python3 did not start in the sandbox; check that its image has it. {ended.message}".rstrip())
    if ended.exit_code != 0:
        said = (ended.message or ended.stderr).strip().splitlines()[-1:] or [""]
        fail(f"the test program failed in the sandbox ({ended.outcome}, exit code {ended.exit_code}): {said[0]}")
    try:
        found = json.loads(ended.stdout)
        return [{"name": str(one["name"]), **{key: one[key] for key in ("expected", "got", "ok")}} for one in found]
    except (ValueError, TypeError, KeyError, RecursionError):
        fail("python3 in the sandbox returned no valid results; check that its image has an unmodified python3")


def _table(checks: Sequence[dict[str, Any]]) -> Rows:
    marks = {True: Text("✓", style="green"), False: Text("✗", style="red")}
    rows = [
        (marks[one["ok"] is True], one_line(one["name"]), one_line(one["expected"]), one_line(one["got"]))
        for one in checks
    ]
    return Rows(("ok", "check", "expected", "got"), rows)
