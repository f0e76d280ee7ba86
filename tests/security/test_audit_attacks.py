"""An attacker who owns the database, and has taken the guards off, tampers with the audit. Each way is detected."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update

from airlock.audit_chain import NOTHING_KNOWN, START_DIGEST, ChainReport, Known, record_digest
from gateway.storage.audit_reader import AuditReader
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.tables import audit_heads, audit_records

RECORDS = audit_records.c
LENGTH = 1_100  # more than two slices of a reader's
GUARDS = {
    "sqlite": [
        "DROP TRIGGER audit_records_changed",
        "DROP TRIGGER audit_records_held",
        "DROP TRIGGER audit_heads_back",
        "DROP TRIGGER audit_heads_held",
        "DROP TRIGGER audit_heads_replaced",
        "DROP TRIGGER audit_records_replaced",
    ],
    "postgresql": ["ALTER TABLE audit_records DISABLE TRIGGER ALL", "ALTER TABLE audit_heads DISABLE TRIGGER ALL"],
}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    store = AuditStore(opened, lambda: 1)
    await store.write(*(AuditEntry("t", "tool_call", call_id=f"call_{n}") for n in range(1, LENGTH + 1)))
    await store.write(AuditEntry("other", "run_started"))

    def unguard(connection: Connection) -> None:
        for statement in GUARDS[connection.dialect.name]:
            connection.execute(text(statement))

    await opened.transact(unguard)
    yield opened
    await opened.close()


async def verified(database: Database, known: Known = NOTHING_KNOWN) -> ChainReport:
    return await AuditReader(database).verified("t", known)


async def broken(database: Database, attack: Callable[[Connection], None]) -> tuple[int, str]:
    before = await verified(database)
    assert before.whole
    assert (before.records, before.last_sequence) == (LENGTH, LENGTH)
    await database.transact(attack)
    report = await verified(database)
    assert not report.whole
    return report.broken_sequence, report.problem.partition(":")[0]


def at(sequence: int) -> object:
    return (RECORDS.tenant == "t") & (RECORDS.sequence == sequence)


def row_at(connection: Connection, sequence: int) -> dict[str, object]:
    return dict(connection.execute(select(audit_records).where(at(sequence))).one()._mapping)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "column, value",
    [("actor", "x"), ("verdict", "deny"), ("at_us", 2), ("details", '{"a":1}'), ("digest", "0" * 64), ("tool", "x")],
)
async def test_a_changed_record_is_found(database: Database, column: str, value: object) -> None:
    where = await broken(
        database,
        lambda connection: connection.execute(update(audit_records).where(at(600)).values({column: value})) and None,  # type: ignore[arg-type]
    )
    assert where == (600, "changed")


async def test_a_changed_record_with_a_digest_of_its_own_is_found_at_the_next(database: Database) -> None:
    def attack(connection: Connection) -> None:
        row = row_at(connection, 600) | {"actor": "somebody else"}
        digest = record_digest(row, str(row["previous_digest"]))
        connection.execute(update(audit_records).where(at(600)).values(actor=row["actor"], digest=digest))  # type: ignore[arg-type]

    assert await broken(database, attack) == (601, "reordered")


async def test_a_removed_record_is_found(database: Database) -> None:
    def attack(connection: Connection) -> None:
        connection.execute(delete(audit_records).where(at(600)))  # type: ignore[arg-type]

    assert await broken(database, attack) == (600, "missing")


async def test_a_removed_record_is_found_when_those_after_it_have_moved_up(database: Database) -> None:
    def attack(connection: Connection) -> None:
        connection.execute(delete(audit_records).where(at(600)))  # type: ignore[arg-type]
        for sequence in range(601, LENGTH + 1):
            connection.execute(update(audit_records).where(at(sequence)).values(sequence=sequence - 1))  # type: ignore[arg-type]
        connection.execute(update(audit_heads).where(audit_heads.c.tenant == "t").values(sequence=LENGTH - 1))

    assert await broken(database, attack) == (600, "reordered")


async def test_two_records_that_changed_places_are_found(database: Database) -> None:
    def attack(connection: Connection) -> None:
        for was, becomes in ((600, -1), (601, 600), (-1, 601)):
            connection.execute(update(audit_records).where(at(was)).values(sequence=becomes))  # type: ignore[arg-type]

    assert await broken(database, attack) == (600, "reordered")


async def test_a_tail_that_was_cut_off_is_found(database: Database) -> None:
    def attack(connection: Connection) -> None:
        connection.execute(delete(audit_records).where(RECORDS.tenant == "t", RECORDS.sequence > 700))

    assert await broken(database, attack) == (701, "cut off")


async def test_a_tail_that_was_cut_off_with_the_head_is_detected_with_a_noted_digest(database: Database) -> None:
    noted = await verified(database)

    def attack(connection: Connection) -> None:
        connection.execute(delete(audit_records).where(RECORDS.tenant == "t", RECORDS.sequence > 700))
        last = str(row_at(connection, 700)["digest"])
        moved = update(audit_heads).where(audit_heads.c.tenant == "t").values(sequence=700, digest=last)
        connection.execute(moved)

    await database.transact(attack)
    assert (await verified(database)).whole  # the chain itself cannot tell
    report = await verified(database, {noted.last_sequence: noted.last_digest})
    assert (report.broken_sequence, report.problem.partition(":")[0]) == (701, "cut off")


async def test_a_rewritten_chain_is_detected_with_a_noted_digest(database: Database) -> None:
    noted = await verified(database)

    def attack(connection: Connection) -> None:
        previous = START_DIGEST
        for sequence in range(1, LENGTH + 1):
            row = row_at(connection, sequence) | {"previous_digest": previous}
            if sequence == 600:
                row["actor"] = "somebody else"
            row["digest"] = previous = record_digest(row, previous)
            connection.execute(update(audit_records).where(at(sequence)).values(**row))  # type: ignore[arg-type]
        connection.execute(update(audit_heads).where(audit_heads.c.tenant == "t").values(digest=previous))

    await database.transact(attack)
    assert (await verified(database)).whole
    report = await verified(database, {noted.last_sequence: noted.last_digest})
    assert (report.broken_sequence, report.problem.partition(":")[0]) == (LENGTH, "changed")


async def test_a_record_that_was_added_is_found(database: Database) -> None:
    def added(connection: Connection, sequence: int) -> None:
        row = row_at(connection, LENGTH) | {"sequence": sequence}
        row["previous_digest"] = row["digest"]
        row["digest"] = record_digest(row, str(row["previous_digest"]))
        connection.execute(insert(audit_records), row)

    assert await broken(database, lambda connection: added(connection, LENGTH + 1)) == (LENGTH + 1, "changed")


async def test_a_record_that_was_put_in_between_is_found(database: Database) -> None:
    def attack(connection: Connection) -> None:
        for sequence in range(LENGTH, 599, -1):
            connection.execute(update(audit_records).where(at(sequence)).values(sequence=sequence + 1))  # type: ignore[arg-type]
        row = row_at(connection, 599) | {"sequence": 600}
        row["previous_digest"] = row["digest"]
        row["digest"] = record_digest(row, str(row["previous_digest"]))
        connection.execute(insert(audit_records), row)
        connection.execute(update(audit_heads).where(audit_heads.c.tenant == "t").values(sequence=LENGTH + 1))

    assert await broken(database, attack) == (601, "reordered")


async def test_a_beginning_that_was_removed_is_found_whatever_the_head_says(database: Database) -> None:
    def attack(connection: Connection) -> None:
        before = str(row_at(connection, 600)["digest"])
        connection.execute(delete(audit_records).where(RECORDS.tenant == "t", RECORDS.sequence <= 600))
        pruned = {"first_sequence": 601, "before_digest": before}
        connection.execute(update(audit_heads).where(audit_heads.c.tenant == "t").values(**pruned))

    assert await broken(database, attack) == (601, "missing")


async def test_a_beginning_that_was_removed_without_a_word_is_found(database: Database) -> None:
    def attack(connection: Connection) -> None:
        connection.execute(delete(audit_records).where(RECORDS.tenant == "t", RECORDS.sequence <= 600))

    assert await broken(database, attack) == (1, "missing")


async def test_a_head_that_is_gone_is_found(database: Database) -> None:
    def attack(connection: Connection) -> None:
        connection.execute(delete(audit_heads).where(audit_heads.c.tenant == "t"))

    assert await broken(database, attack) == (LENGTH, "cut off")


async def test_a_head_with_another_digest_is_found(database: Database) -> None:
    def attack(connection: Connection) -> None:
        connection.execute(update(audit_heads).where(audit_heads.c.tenant == "t").values(digest="1" * 64))

    assert await broken(database, attack) == (LENGTH, "changed")


async def test_a_record_of_another_tenant_does_not_pass_for_ones_own(database: Database) -> None:
    def attack(connection: Connection) -> None:
        foreign = connection.execute(select(audit_records).where(RECORDS.tenant == "other")).one()
        first = dict(foreign._mapping) | {"tenant": "t"}
        connection.execute(delete(audit_records).where(at(1)))  # type: ignore[arg-type]
        connection.execute(insert(audit_records), first)

    assert await broken(database, attack) == (1, "changed")


async def test_a_whole_chain_that_is_gone_is_detected_with_a_noted_digest(database: Database) -> None:
    noted = await verified(database)

    def attack(connection: Connection) -> None:
        connection.execute(delete(audit_records).where(RECORDS.tenant == "t"))
        connection.execute(delete(audit_heads).where(audit_heads.c.tenant == "t"))

    await database.transact(attack)
    assert (await verified(database)).whole
    assert not (await verified(database, {noted.last_sequence: noted.last_digest})).whole


async def test_an_export_shows_what_was_changed_in_it(database: Database) -> None:
    from airlock.audit_chain import AuditRecord, ChainCheck

    lines = [record.line() async for record in AuditReader(database).chain("t")][:50]

    def problem(lines: list[str]) -> tuple[int, str]:
        check = ChainCheck(None, part=True)
        for line in lines:
            check.take(AuditRecord.of_line(line))
        report = check.report()
        return report.broken_sequence, report.problem.partition(":")[0]

    assert problem(lines) == (0, "")
    assert problem(lines[10:]) == (0, "")
    assert problem(lines[:10] + lines[11:]) == (11, "missing")
    assert problem([*lines[:10], lines[11], lines[10], *lines[12:]]) == (11, "missing")
    changed = asdict(AuditRecord.of_line(lines[10])) | {"rule": "another"}
    assert problem([*lines[:10], json.dumps(changed), *lines[11:]]) == (11, "changed")
    foreign = asdict(AuditRecord.of_line(lines[0])) | {"previous_digest": "1" * 64}
    assert problem([json.dumps(foreign), *lines[1:]]) == (1, "changed")
