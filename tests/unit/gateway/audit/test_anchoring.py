"""Anchors of the audit: what is written where, and what they find that the database itself cannot tell."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import ValidationError
from sqlalchemy import Connection, delete, insert, select, text, update

from airlock.audit_chain import START_DIGEST, record_digest
from gateway.audit.anchoring import Anchoring, Put, to_command, to_file
from gateway.audit_chain.anchor import Anchor, known_by
from gateway.config.operation_settings import AnchorSettings
from gateway.storage.audit_reader import AuditReader
from gateway.storage.audit_store import AuditEntry, AuditStore
from gateway.storage.database import Database
from gateway.storage.tables import audit_heads, audit_records, runs, threads
from tests.security.test_audit_attacks import GUARDS

KEY = Ed25519PrivateKey.generate()
RECORDS = audit_records.c


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()


async def _write(database: Database, tenant: str, records: int, actor: str = "ann") -> None:
    await AuditStore(database, lambda: 1).write(*(AuditEntry(tenant, "run_started", actor) for _ in range(records)))


def _anchoring(database: Database, put: Put) -> Anchoring:
    return Anchoring(AuditReader(database), KEY, put, lambda: 7)


async def test_each_chain_that_moved_is_anchored_once(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "anchors.jsonl"
    anchoring = _anchoring(database, to_file(file))
    await _write(database, "t", 3)
    await _write(database, "", 1)
    assert await anchoring.anchor() == 2
    assert await anchoring.anchor() == 0
    await _write(database, "t", 2)
    assert await anchoring.anchor() == 1
    anchors = [Anchor.of_line(line, KEY.public_key()) for line in file.read_text().splitlines()]
    assert [(one.tenant, one.sequence, one.records, one.at_us) for one in anchors] == [
        ("", 1, 1, 7),
        ("t", 3, 3, 7),
        ("t", 5, 5, 7),
    ]
    assert file.stat().st_mode & 0o777 == 0o600


def _cut_off(connection: Connection) -> None:
    connection.execute(delete(audit_records).where(RECORDS.tenant == "t", RECORDS.sequence > 3))
    last = connection.execute(select(RECORDS.digest).where(RECORDS.tenant == "t", RECORDS.sequence == 3)).scalar_one()
    connection.execute(update(audit_heads).where(audit_heads.c.tenant == "t").values(sequence=3, digest=last))


def _replace(connection: Connection) -> None:
    previous = START_DIGEST
    for row in connection.execute(select(audit_records).where(RECORDS.tenant == "t").order_by(RECORDS.sequence)).all():
        forged = {**row._mapping, "actor": "somebody else", "previous_digest": previous}
        forged["digest"] = previous = record_digest(forged, previous)
        at = (RECORDS.tenant == "t") & (RECORDS.sequence == row.sequence)
        connection.execute(update(audit_records).where(at).values(**forged))
    connection.execute(update(audit_heads).where(audit_heads.c.tenant == "t").values(digest=previous))


def _remove(connection: Connection) -> None:
    connection.execute(delete(audit_records).where(RECORDS.tenant == "t"))
    connection.execute(delete(audit_heads).where(audit_heads.c.tenant == "t"))


@pytest.mark.parametrize(
    "attack, problem", [(_cut_off, "cut off"), (_replace, "changed"), (_remove, "cut off")], ids=["cut", "new", "gone"]
)
@pytest.mark.parametrize("goes_on", [0, 5], ids=["at rest", "and goes on"])
async def test_what_the_owner_of_the_database_did_is_found(
    database: Database, tmp_path: Path, attack: Callable[[Connection], None], problem: str, goes_on: int
) -> None:
    file = tmp_path / "anchors.jsonl"
    anchoring = _anchoring(database, to_file(file))
    await _write(database, "t", 4)
    await anchoring.anchor()

    def owner(connection: Connection) -> None:
        for statement in GUARDS[connection.dialect.name]:
            connection.execute(text(statement))
        attack(connection)

    await database.transact(owner)
    await _write(database, "t", goes_on, actor="bob")
    reader = AuditReader(database)
    assert (await reader.verified("t")).whole  # the database cannot tell
    known = known_by(file.read_text().splitlines(), KEY.public_key(), "t")
    report = await reader.verified("t", known)
    assert report.problem.partition(":")[0] == ("changed" if goes_on else problem)
    if goes_on:  # the gateway anchors the forged chain as well, and the older anchors still contradict it
        await anchoring.anchor()
        known = known_by(file.read_text().splitlines(), KEY.public_key(), "t")
        assert not (await reader.verified("t", known)).whole


async def test_a_chain_that_is_gone_is_missed_where_its_calls_are_stored(database: Database) -> None:
    assert (await AuditReader(database).verified("t")).whole
    run = {"id": "r", "tenant": "t", "thread_id": "h", "agent": "a", "task": "", "status": "failed", "started_us": 1}
    run |= {"policy_version": "p", "last_sequence": 0}
    await database.write(
        (insert(threads), {"id": "h", "tenant": "t", "name": "n", "created_us": 1}),
        (insert(runs), run),
    )
    assert (await AuditReader(database).verified("t")).problem.startswith("missing: the chain is gone")


@pytest.mark.parametrize(
    "field, value", [("digest", "0" * 64), ("sequence", 9), ("tenant", "u"), ("signature", "AAAA")]
)
async def test_a_line_that_was_changed_is_no_anchor(field: str, value: object) -> None:
    line = json.loads(Anchor("t", 1, 2, "d", 2).line(KEY))
    line[field] = value
    with pytest.raises(ValueError, match="line 1: it is not signed with this key"):
        known_by([json.dumps(line)], KEY.public_key(), "t")


@pytest.mark.parametrize("line", ["", "null", "[]", "{}", '{"tenant": "t"}', "[" * 100_000, '{"sequence": "x"}'])
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: "):
        known_by([Anchor("t", 1, 2, "d", 2).line(KEY), line], KEY.public_key(), "t")


def test_anchors_that_contradict_each_other_say_that_the_chain_was_replaced() -> None:
    lines = [Anchor("t", 1, 2, digest, 2).line(KEY) for digest in ("a", "b")]
    with pytest.raises(ValueError, match="line 2: record 2 had another digest in an earlier anchor"):
        known_by(lines, KEY.public_key(), "t")


async def test_what_could_not_be_written_is_written_at_the_next_look(database: Database, tmp_path: Path) -> None:
    await _write(database, "t", 1)
    taken = tmp_path / "taken"
    put = to_command(["sh", "-c", f"test -e {tmp_path}/ready && cat >>{taken} || {{ echo not ready >&2; exit 3; }}"])
    anchoring = _anchoring(database, put)
    with pytest.raises(OSError, match="sh ended with 3: not ready"):
        await anchoring.anchor()
    (tmp_path / "ready").touch()
    assert await anchoring.anchor() == 1
    assert Anchor.of_line(taken.read_text().splitlines()[0], KEY.public_key()).sequence == 1


async def test_a_program_that_hangs_has_taken_nothing() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        to_command(["sleep", "60"], limit_s=0.1)(b"line\n")


def test_a_write_that_is_cut_short_leaves_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "anchors.jsonl"
    put = to_file(file)
    put(b"first\n")
    child = os.fork()
    if child == 0:  # a limit on the size of files stands for a full disk
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))
        with suppress(OSError):
            put(b"second\n")
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read_bytes() == b"first\n"
    put(b"third\n")
    assert file.read_bytes() == b"first\nthird\n"


@pytest.mark.parametrize("where", [{}, {"file": "a", "command": ["b"]}])
def test_anchors_have_one_place(where: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="set either file or command"):
        AnchorSettings.model_validate({"key_file": "k", **where})
