"""The operator's command line against a gateway that speaks TLS: keys, tenants, policies, and the audit of all that."""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner

from gateway.cli.main import app
from tests.gateway_process import Home, Served, make_home, served
from tests.postgres import PostgresServer

POLICY = """\
version: 1
rules:
  - {{id: {name}, tools: [read], effect: {effect}, reason: Harmless.}}
"""


@dataclass(frozen=True)
class Line:
    """The command line, on a gateway, with a key."""

    gateway: Served
    home: Home
    ca: Path
    operator: str

    def ask(self, *arguments: str, key: str = "", code: int = 0, address: bool = False) -> Any:
        """Return what a command tells programs, one document or the list of those there are."""
        at = ("--address", self.gateway.address) if address else ()
        return self.run("--tls-ca", str(self.ca), *arguments, *at, "--json", key=key, code=code)

    def run(self, *arguments: str, key: str = "", code: int = 0) -> Any:
        """Run the command line in this process, which has imported everything: a new one would take a second."""
        env = {"AIRLOCK_ADDRESS": self.gateway.address, "AIRLOCK_API_KEY": key or self.operator}
        # In a context of its own, for what is said of TLS stays in it.
        ran = contextvars.copy_context().run(CliRunner().invoke, app, arguments, env=env)
        assert ran.exit_code == code, ran.output
        documents = [json.loads(line) for line in ran.stdout.splitlines()]
        return documents[0] if len(documents) == 1 else documents

    def policy(self, command: str, *arguments: str, code: int = 0) -> Any:
        return self.ask("policy", command, *arguments, code=code, address=True)

    def file(self, name: str, effect: str = "allow") -> str:
        path = self.home.config.parent / "candidate.yaml"
        path.write_text(POLICY.format(name=name, effect=effect), encoding="utf-8")
        return str(path)


@contextlib.contextmanager
def _line(directory: Path, database_url: str | None) -> Iterator[Line]:
    home = make_home(directory / "home")
    if database_url is not None:
        home.store_in(database_url)
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    (directory / "gateway.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (directory / "gateway.key").write_bytes(issued.private_key_pem.bytes())
    home.configure(tls={"certificate": str(directory / "gateway.crt"), "key": str(directory / "gateway.key")})
    key = home.make_key("")
    with served(home) as gateway:
        yield Line(gateway, home, directory / "ca.pem", key)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def line(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with contextlib.ExitStack() as stack:
        url = None
        if request.param == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            url = stack.enter_context(server.database())
        yield stack.enter_context(_line(tmp_path_factory.mktemp("line"), url))


def test_keys_are_made_listed_rotated_and_revoked_over_the_api(line: Line) -> None:
    first = line.ask("key", "create", "--scope", "tool", "--name", "ci", "--expires-in", "90d", address=True)
    assert (first["tenant"], first["scopes"], first["name"]) == ("default", ["tool"], "ci")
    second = line.ask("key", "rotate", first["id"], "--overlap", "1h", address=True)
    assert line.ask("key", "revoke", second["id"], address=True)["revoked_at"]
    listed = {key["id"]: key for key in line.ask("key", "list", "--all", "--tenant", "default", address=True)}
    assert listed[first["id"]]["replaced_by"] == second["id"]
    assert "key" not in listed[first["id"]]
    refused = line.ask("tool", "call", "ls", "{}", key=second["key"], code=3)
    assert refused["reason"] == "UNAUTHENTICATED"
    assert line.ask("key", "list", key=line.home.key, code=3, address=True)["reason"] == "SCOPE_MISSING"
    for whose in ((), ("--tenant", "default")):
        assert line.ask("audit", "query", "--kind", "key_rotated", *whose)["kind"] == "key_rotated"


def test_tenants_are_listed_and_shown(line: Line) -> None:
    (default,) = line.ask("tenant", "list")
    assert default["name"] == "default"
    shown = line.ask("tenant", "show", "default")
    assert shown["stored"]["api_keys"] >= 2
    assert line.ask("tenant", "show", "nobody", code=3)["reason"] == "NOT_FOUND"
    assert line.ask("tenant", "delete", "default", "--yes", code=3)["reason"] == "STILL_CONFIGURED"
    assert "--yes" in line.ask("tenant", "delete", "default", code=2)["error"]


def test_policies_are_applied_looked_at_and_taken_back_over_the_api_and_both_audits_say_so(line: Line) -> None:
    of = ("--tenant", "default")
    start = line.policy("current", *of)
    first = line.policy("apply", line.file("first"), *of, "--comment", "a start")
    assert (first["ok"], first["before"], first["unchanged"]) == (True, start["version"], False)
    assert line.policy("apply", line.file("first"), *of)["unchanged"]
    second = line.policy("apply", line.file("second"), *of)
    assert line.policy("current", *of, "--text")["text"] == POLICY.format(name="second", effect="allow")
    back = line.policy("rollback", *of)
    assert (back["before"], back["version"], back["kind"]) == (second["version"], first["version"], "rollback")
    reported = [(one["version"], one["kind"], one["comment"]) for one in line.policy("history", *of)]
    assert reported[:3] == [
        (first["version"], "rollback", ""),
        (second["version"], "apply", ""),
        (first["version"], "apply", "a start"),
    ]
    # The same is seen on the database, by an operator who may read that.
    there = line.run("policy", "current", *of, "--config", str(line.home.config), "--json")
    assert (there["version"], there["in_force"]) == (first["version"], line.policy("current", *of)["in_force"])
    bad = line.policy("apply", line.file("bad", effect="maybe"), *of, code=1)
    assert (bad["ok"], bad["errors"][0]["line"]) == (False, 3)
    assert "not found" in line.policy("rollback", "policy_000000000000", *of, code=1)["error"]
    line.policy("apply", line.file("never", effect="deny"), "--operator-layer")
    assert line.policy("current", *of)["operator"]["version"]
    for chain in ("default", ""):
        whose = ("--tenant", chain) if chain else ()
        found = line.ask("audit", "query", "--kind", "policy_applied", *whose)
        acts = [json.loads(one["details"]) if isinstance(one["details"], str) else one["details"] for one in found]
        assert [act["how"] for act in acts if act["tenant"] == "default" and act["how"] != "file"] == [
            "rollback",
            "apply",
            "apply",
        ]
        assert line.ask("audit", "verify", *whose)["whole"]


def test_who_guesses_keys_is_in_the_operators_audit_and_does_not_fill_it(line: Line) -> None:
    for _ in range(5):
        assert line.ask("runs", "list", key="alk_guessed", code=3)["reason"] == "UNAUTHENTICATED"
    found = line.ask("audit", "query", "--kind", "denied")
    assert 1 <= len([one for one in found if one["details"].get("key_state") == "unknown"]) <= 3
    assert all(one["actor"] == "unknown" for one in found)
    assert "alk_guessed" not in json.dumps(found)


def test_a_caller_with_a_revoked_key_reads_nothing_more_and_operators_see_which_it_is(line: Line) -> None:
    made = line.ask("key", "create", "--scope", "run", address=True)
    revoked = line.ask("key", "revoke", made["id"], "--cancel-runs", address=True)
    assert (revoked["shown"], revoked["runs_under_way"]) == (made["shown"], 0)
    guessed = line.ask("runs", "list", key="alk_guessed", code=3)
    assert line.ask("runs", "list", key=made["key"], code=3)["error"] == guessed["error"]
    found: list[dict[str, Any]] = []
    while not found:  # the answer does not wait for the record
        records = line.ask("audit", "query", "--kind", "denied")
        details = [one["details"] for one in (records if isinstance(records, list) else [records])]
        found = [one for one in details if one.get("key_id") == made["id"]]
    reported = found[0]
    assert (reported["key_state"], reported["shown"], reported["tenant"]) == ("revoked", made["shown"], "default")


def test_without_its_authority_the_gateway_is_not_trusted_and_plain_text_is_not_served(
    line: Line, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    for options in ((), ("--tls",), ("--tls-ca", str(tmp_path / "other.pem"))):
        assert line.run(*options, "tenant", "list", "--json", code=3)["reason"] == "UNAVAILABLE", options
    assert line.run("--tls-ca", str(tmp_path / "none.pem"), "tenant", "list", "--json", code=2)["error"]
    named = ("--tls-server-name", "localhost", "--tls-ca", str(line.ca))
    assert [one["name"] for one in line.run(*named, "tenant", "list", "--json")] == ["default"]
