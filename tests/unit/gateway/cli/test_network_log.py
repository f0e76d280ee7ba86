"""`airlock network log`: connections on record, filtered and shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from airlock.audit import AuditQuery
from airlock.audit_chain import AuditRecord
from gateway.cli.main import app
from gateway.client import Client

DENIED = {"address": "", "bytes_up": 0, "bytes_down": 0, "reason": "no rule"}


def record(sequence: int, host: str, verdict: str = "allow", **details: Any) -> AuditRecord:
    known = {"host": host, "port": 443, "address": "192.0.2.1", "bytes_up": 1500, "bytes_down": 2_000_000}
    return AuditRecord(
        tenant="acme",
        sequence=sequence,
        at_us=1_790_000_000_000_000 + sequence,
        kind="connection",
        actor="alk_a",
        thread="t1",
        run_id="",
        call_id="call_1",
        tool="connect",
        arguments_digest="",
        verdict=verdict,
        rule="packages" if verdict == "allow" else "default-deny",
        policy_version="policy_1",
        outcome="completed" if verdict == "allow" else "policy_denied",
        size_bytes=0,
        duration_us=1500,
        details=json.dumps({**known, **details}),
        previous_digest="",
        digest="",
    )


RECORDS = (
    record(1, "pypi.org", credential="pypi-token"),
    record(2, "files.pypi.org"),
    record(3, "evil.example", "deny", **DENIED),
    record(4, "fd00::1"),
    record(5, "notpypi.org"),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[AuditQuery]:
    """What the gateway was asked; it has RECORDS, and one more that a follower sees."""
    queries: list[AuditQuery] = []

    async def backwards(_: Client, query: AuditQuery, *, tenant: str) -> AsyncIterator[AuditRecord]:
        queries.append(query)
        for one in reversed(RECORDS):
            if query.verdict in ("", one.verdict):
                yield one

    async def tail(_: Client, query: AuditQuery, *, tenant: str, from_sequence: int) -> AsyncIterator[AuditRecord]:
        queries.append(query)
        for one in (*RECORDS, record(6, "late.pypi.org")):
            if one.sequence >= from_sequence:
                yield one

    monkeypatch.setattr(Client, "list_audit", backwards)
    monkeypatch.setattr(Client, "tail_audit", tail)
    return queries


def log(*arguments: str) -> str:
    ended = CliRunner().invoke(app, ["network", "log", "--key", "alk_x", *arguments])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def hosts(*arguments: str) -> list[str]:
    return [json.loads(line)["host"] for line in log("--json", *arguments).splitlines()]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ((), ["notpypi.org", "fd00::1", "evil.example", "files.pypi.org", "pypi.org"]),
        (("--limit", "2"), ["notpypi.org", "fd00::1"]),
        (("--host", "PyPI.org."), ["pypi.org"]),
        (("--host", "*.pypi.org"), ["files.pypi.org"]),
        (("--host", "[fd00::1]"), ["fd00::1"]),
        (("--host", "pypi.org", "--limit", "1"), ["pypi.org"]),
        (("--denied",), ["evil.example"]),
        (("--host", "org"), []),
    ],
)
def test_connections_are_listed_newest_first_by_host_and_verdict(
    asked: list[AuditQuery], arguments: tuple[str, ...], expected: list[str]
) -> None:
    assert hosts(*arguments) == expected
    assert {one.kinds for one in asked} == {("connection",)}


def test_a_connection_is_one_object_in_json(asked: list[AuditQuery]) -> None:
    one = json.loads(log("--json", "--host", "pypi.org", "--thread", "t1", "--since", "1h"))
    assert (asked[0].thread, asked[0].since is not None) == ("t1", True)
    wanted = {
        "thread": "t1",
        "host": "pypi.org",
        "port": 443,
        "address": "192.0.2.1",
        "verdict": "allow",
        "rule": "packages",
        "outcome": "completed",
        "bytes_up": 1500,
        "bytes_down": 2_000_000,
        "credential": "pypi-token",
        "call_id": "call_1",
        "duration_ms": 1.5,
    }
    assert {name: one[name] for name in wanted} == wanted
    assert one["at"].endswith("+00:00")


def test_people_see_the_host_the_rule_and_the_bytes(asked: list[AuditQuery]) -> None:
    heading, _, address, denied, *_, allowed = log().splitlines()
    assert heading.split() == ["at", "thread", "host", "address", "verdict", "outcome", "up", "down", "credential"]
    assert "[fd00::1]:443" in address
    assert denied.split()[2:] == ["t1", "evil.example:443", "deny", "by", "default-deny", "policy_denied", "0", "0"]
    assert allowed.split()[3:5] == ["pypi.org:443", "192.0.2.1"]
    assert allowed.split()[-3:] == ["1,500", "2,000,000", "pypi-token"]
    assert log("--host", "elsewhere").strip() == "no matching connections"


def test_bytes_that_are_not_known_are_shown_as_that(monkeypatch: pytest.MonkeyPatch, asked: list[AuditQuery]) -> None:
    monkeypatch.setattr(f"{__name__}.RECORDS", (record(1, "lost.example", bytes_up=None, bytes_down=None),))
    assert log().splitlines()[-1].split()[-2:] == ["?", "?"]
    one = json.loads(log("--json"))
    assert (one["bytes_up"], one["bytes_down"]) == (None, None)


def test_a_follower_sees_the_last_ones_in_order_and_then_each_new_one_once(asked: list[AuditQuery]) -> None:
    assert hosts("--follow", "--host", "*.pypi.org") == ["files.pypi.org", "late.pypi.org"]
    assert hosts("--follow") == [*(json.loads(one.details)["host"] for one in RECORDS), "late.pypi.org"]
    last = log("--follow").splitlines()[-1]
    assert "late.pypi.org:443" in last


def test_following_has_no_end() -> None:
    ended = CliRunner().invoke(app, ["network", "log", "--follow", "--until", "1h", "--key", "alk_x", "--json"])
    assert (ended.exit_code, "--until" in json.loads(ended.stdout)["error"]) == (2, True)


def test_what_a_sandbox_named_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, asked: list[AuditQuery]
) -> None:
    monkeypatch.setattr(f"{__name__}.RECORDS", (record(1, "\x1b[31mred.example"),))
    assert "\x1b" not in log()
    assert "\x1b" not in log("--json")
