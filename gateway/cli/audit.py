"""`airlock audit`: read, export and verify audit records. Needs a key with the scope audit."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer
from rich.text import Text

from airlock.audit_chain import AuditRecord, ChainCheck, ChainReport, ExportEnd, Known, compared
from gateway.cli.command import Commands, GatewayCli, Limit, OfThread, Since, Until, moment_of
from gateway.cli.printable import Rows, one_line
from gateway.cli.terminal import EXIT_BAD_NEWS, SafeBytes, SlowWork, fail, out, print_json

if TYPE_CHECKING:
    from airlock.audit import AuditQuery

# Records between two progress reports.
_REPORT_EACH = 1000
app = Commands(help="Read, export and verify audit records: who did what, and by which rule.")

OfTenant = Annotated[
    str, typer.Option("--tenant", help="Tenant to read (operator keys only); default: the operators' own records.")
]


@dataclass(frozen=True)
class Work:
    """Filters by the work that the records are about."""

    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="Filter by kind, such as tool_call or run_started; repeatable.")
    ] = None
    thread: OfThread = ""
    run: Annotated[str, typer.Option(help="Filter by run.")] = ""

    def query(self, **more: Any) -> AuditQuery:
        from airlock.audit import AuditQuery

        return AuditQuery(kinds=tuple(self.kind or ()), thread=self.thread, run_id=self.run, **more)


@dataclass(frozen=True)
class Decision:
    """Filters by decision, key and time."""

    tool: Annotated[str, typer.Option(help="Filter by tool.")] = ""
    verdict: Annotated[Literal["allow", "ask", "deny"] | None, typer.Option(help="Filter by verdict.")] = None
    rule: Annotated[str, typer.Option(help="Filter by the rule that decided.")] = ""
    actor: Annotated[str, typer.Option(help="Filter by key, as shown in lists.")] = ""
    since: Since = ""
    until: Until = ""

    def fields(self) -> dict[str, Any]:
        times = {"since": moment_of("--since", self.since), "until": moment_of("--until", self.until)}
        return asdict(self) | times | {"verdict": self.verdict or ""}


@app.command()
async def query(cli: GatewayCli, *, work: Work, decision: Decision, limit: Limit = 50, tenant: OfTenant = "") -> None:
    """List records, newest first; with --json, one per line."""
    found = await cli.airlock.audit(work.query(**decision.fields()), tenant=tenant, limit=limit)
    if cli.as_json:
        for record in found:
            print_json(_as_document(record))
        return
    hint = "" if tenant else " in this key's own chain; an operator's key can add --tenant NAME"
    out.print(listed(found) if found else f"no matching records{hint}")


@app.command()
async def tail(
    cli: GatewayCli,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new records until Ctrl-C.")] = False,
    from_sequence: Annotated[
        int, typer.Option("--from", min=0, help="First sequence number; default: the last ten records.")
    ] = 0,
    work: Work,
    tenant: OfTenant = "",
) -> None:
    """Print the last records in order, one per line; with --follow, also new ones as they arrive."""
    wanted, begin = work.query(), from_sequence
    if not begin:
        newest_first = await cli.airlock.audit(wanted, tenant=tenant, limit=10)
        begin = newest_first[-1].sequence if newest_first else 1
    records = cli.airlock.tail_audit(wanted, tenant=tenant, from_sequence=begin, follow=follow, resume=True)
    async for record in records:
        cli.show(_as_document(record) if cli.as_json else {}, _line(record))


@app.command()
async def export(
    cli: GatewayCli,
    *,
    to: Annotated[Path | None, typer.Option("--to", help="File to create; default: standard output.")] = None,
    from_sequence: Annotated[int, typer.Option("--from", min=1, help="First sequence number.")] = 1,
    tenant: OfTenant = "",
) -> None:
    """Export the chain with its digests as JSON lines; `airlock audit verify --file` verifies the export anywhere.

    The last line marks the export as complete. With --to, the file appears under its name only then.
    """
    with _opened(to) as file, SlowWork("exporting the chain") as slow:
        count, end = 0, ExportEnd()
        chain = cli.airlock.tail_audit(tenant=tenant, from_sequence=from_sequence, follow=False, resume=True)
        async for record in chain:
            file.write(f"{record.line()}\n".encode())
            end = ExportEnd(end.first_sequence or record.sequence, record.sequence, record.digest)
            count += 1
            if count % _REPORT_EACH == 0:
                slow.at(f"{count:,} records")
        file.write(f"{end.line()}\n".encode())
    if to is not None:
        cli.show({"file": str(to), "records": count}, f"{count} records in {to}")


@app.command()
def verify(
    cli: GatewayCli,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="Verify an export, without a gateway.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Verify the database of a configuration file, without a gateway.")
    ] = None,
    known: Annotated[str, typer.Option(help="SEQUENCE:DIGEST printed by an earlier verify.")] = "",
    anchor: Annotated[
        Path | None,
        typer.Option("--anchor", help="File of anchors (audit.anchor), each of which must be in the chain."),
    ] = None,
    anchor_key: Annotated[
        Path | None, typer.Option("--anchor-key", help="Public key of the anchors' signatures, as PEM.")
    ] = None,
    tenant: OfTenant = "",
) -> None:
    """Recompute the chain of digests. Exits with 1 if it is broken, saying where and how, or if an export is empty.

    Keep the printed digest in another place and pass it to the next verify as --known: an attacker who can write to the
    database can replace the whole chain, but not with one that contains this digest. --anchor compares the chain with
    all anchors that the gateway has written outside the database.
    """
    if file is not None and config is not None:
        fail("use only one of --file and --config")
    if (anchor is None) != (anchor_key is None):
        fail("--anchor and --anchor-key must be used together")
    links = dict(_known(known))
    if anchor is not None and anchor_key is not None:
        anchored = _anchored(anchor, anchor_key, tenant)
        for sequence, digest in links.items():
            if anchored.get(sequence, digest) != digest:
                fail(f"record {sequence}: --known and the anchor have different digests", EXIT_BAD_NEWS)
        links |= anchored
    with SlowWork("verifying the chain") as slow:
        if file is not None:
            report = _verified_file(file, links, slow)
        elif config is not None:
            report = cli.wait(_verified_database(config, tenant, links))
        else:
            report = cli.wait(_verified_by_gateway(cli, tenant, links))
    cli.show({"whole": report.whole} | asdict(report), lambda _: _show(report), bad_news=not report.whole)


def _anchored(path: Path, key: Path, tenant: str) -> Known:
    from gateway.audit_chain.anchor import known_by, public_key

    try:
        with path.open(encoding="utf-8") as lines:
            known = known_by(lines, public_key(key), tenant)
    except ValueError as error:
        fail(f"{path}, {error}", EXIT_BAD_NEWS)
    if not known:
        whose = f"tenant {tenant}" if tenant else "the operators; use --tenant to name a tenant"
        fail(f"{path}: no anchor of {whose}", EXIT_BAD_NEWS)
    return known


def _show(report: ChainReport) -> None:
    if report.whole:
        many = "1 record" if report.records == 1 else f"{report.records} records"
        out.print(f"intact: {many}, {report.first_sequence} to {report.last_sequence}")
        last = f"{report.last_sequence}:{report.last_digest}"
        out.print(f"store this elsewhere, and give it to the next verification with --known: {last}")
    elif not report.broken_sequence:
        out.print(report.problem, style="bold red")
    else:
        out.print("broken", style="bold red", end=" ")
        out.print(f"at {report.broken_sequence}: {report.problem}")


async def _verified_by_gateway(cli: GatewayCli, tenant: str, known: Known) -> ChainReport:
    newest = max(known, default=0)
    report = await cli.airlock.verify_audit(tenant=tenant, known=(newest, known[newest]) if newest else None)
    if len(known) <= 1 or not report.whole:
        return report
    # The API takes one known record; the others are compared here.
    check = ChainCheck(None, known, part=True)
    async for record in cli.airlock.tail_audit(tenant=tenant, from_sequence=1, follow=False, resume=True):
        check.take(record)
    return check.report()


async def _verified_database(config: Path, tenant: str, known: Known) -> ChainReport:
    from gateway.audit.audit import Audit
    from gateway.cli.database import local_database
    from gateway.config.config import Config
    from gateway.storage.audit_reader import AuditReader

    loaded = Config.load(config)
    async with local_database(loaded, as_it_is=True) as database:
        audit = Audit(AuditReader(database), loaded.tenants)
        await audit.check_known(tenant)
        return await audit.verified(tenant, known)


def _verified_file(path: Path, known: Known, slow: SlowWork) -> ChainReport:
    check = ChainCheck(None, known, part=True)
    number, end = 1, None
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if end is not None:
                    raise ValueError("the line before it marks the end of the export")
                end = ExportEnd.of_line(line)
                if end is None:
                    check.take(AuditRecord.of_line(line))
                number += 1
                if number % _REPORT_EACH == 0:
                    slow.at(f"{number:,} records")
    except (ValueError, RecursionError) as error:
        fail(f"{path}, line {number}: {error}")
    return compared(check.report(), end)


def _known(text: str) -> Known:
    if not text:
        return {}
    sequence, _, digest = text.partition(":")
    if not sequence.isdecimal() or len(digest) != len("0" * 64):
        fail("--known must be SEQUENCE:DIGEST, as printed by `airlock audit verify`")
    return {int(sequence): digest}


@contextlib.contextmanager
def _opened(to: Path | None) -> Iterator[SafeBytes | BinaryIO]:
    if to is None:
        shown = SafeBytes()
        yield shown
        shown.end()
        return
    # Written under another name until complete, so that a failed export cannot be mistaken for a complete one.
    part = to.with_name(f".{to.name}.{secrets.token_hex(4)}.part")
    try:
        if os.path.lexists(to):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        with part.open("xb") as file:
            yield file
        part.rename(to)
    except OSError as error:
        fail(f"{to}: {error.strerror}")
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


_STYLES = {"deny": "red", "ask": "yellow", "allow": "green"}


def _as_document(record: AuditRecord) -> dict[str, Any]:
    """Return a record as JSON; verifying records needs `airlock audit export`."""
    times = {"at": _time(record.at_us), "duration_ms": record.duration_us / 1000}
    return asdict(record) | times | {"details": json.loads(record.details)}


def listed(records: Sequence[AuditRecord]) -> Rows:
    """Return records as rows."""
    names = ("#", "at", "kind", "actor", "what", "verdict", "outcome", "details")
    return Rows(names, [(str(record.sequence), *_cells(record)) for record in records])


def _line(record: AuditRecord) -> Text:
    return Text(" ").join([Text(f"{record.sequence:>6}"), *(cell for cell in _cells(record) if cell.plain)])


def _cells(record: AuditRecord) -> list[Text]:
    rule = f" by {record.rule}" if record.rule else ""
    whose = " ".join(part for part in (record.tool, record.thread and f"in {record.thread}", record.run_id) if part)
    details = ", ".join(f"{name} {value}" for name, value in json.loads(record.details).items())
    cells = (_time(record.at_us), record.kind, record.actor, whose)
    return [
        *(Text(one_line(cell)) for cell in cells),
        Text(one_line(f"{record.verdict}{rule}") if record.verdict else "", style=_STYLES.get(record.verdict, "")),
        Text(one_line(record.outcome)),
        Text(one_line(details), style="dim"),
    ]


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="milliseconds")
