"""Every RPC that the gateway says it has: with credentials that must not open it, and with another tenant's ids.

With each kind of credential a gateway of its own is walked, with keys on SQLite, with tokens and certificates on
PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import make_home, served
from tests.postgres import PostgresServer
from tests.security.gateway.credentials import OTHER, ApiKeys, Certificates, Credentials, Kind, Tokens
from tests.security.gateway.rpc_table import RPCS, Ids
from tests.security.gateway.walked_gateway import (
    ABSENT,
    POLICY,
    ask,
    ask_raw,
    described,
    make_keys,
    make_things,
    requests,
    with_half_a_pair,
)

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@dataclass(frozen=True)
class Walk:
    """The gateway's methods, and who has what there."""

    methods: dict[str, Any]
    credentials: Credentials
    theirs: Ids


def _kind(name: str, directory: Path) -> Kind:
    return {"keys": ApiKeys, "tokens": Tokens}[name]() if name != "certificates" else Certificates(directory)


@pytest.fixture(scope="module", params=["keys", "tokens", "certificates"])
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    directory = tmp_path_factory.mktemp(request.param)
    kind = _kind(request.param, directory)
    home = make_home(directory / "home")
    with contextlib.ExitStack() as stack:
        if request.param != "keys":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            home.store_in(stack.enter_context(server.database()))
        (home.config.parent / "policies" / "default.yaml").write_text(POLICY, encoding="utf-8")
        home.add_tenant(OTHER, POLICY)
        # No model answers there: a run is made and fails, and it is there.
        home.configure(model={"base_url": "http://127.0.0.1:9/v1", "name": "none"})
        stack.enter_context(kind.serving(home))
        gateway = stack.enter_context(served(home, {"OPENAI_API_KEY": "none"}))
        keys = asyncio.run(make_keys(home))
        theirs = asyncio.run(make_things(gateway.address, home, keys, kind.tls))
        credentials = stack.enter_context(kind.presented(gateway.address, keys))
        yield Walk(described(credentials.tenant["run"].channel), credentials, theirs)
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


def test_no_rpc_is_forgotten_here(walk: Walk) -> None:
    assert set(walk.methods) == set(RPCS)


def test_no_rpc_answers_without_a_credential_and_none_says_why_a_key_is_none_but_that_it_expired(walk: Walk) -> None:
    for name, method in walk.methods.items():
        request = requests(name, walk.theirs)
        dead = {wrong: ask(one, name, method, request) for wrong, one in walk.credentials.dead_keys.items()}
        assert len({found.said for wrong, found in dead.items() if wrong != "expired"}) == 1, name
        of_no_tenant_tables = {
            wrong: ask(one, name, method, request) for wrong, one in walk.credentials.of_no_tenant_tables.items()
        }
        for wrong, found in {**of_no_tenant_tables, **dead}.items():
            reason = "KEY_EXPIRED" if wrong == "expired" else "UNAUTHENTICATED"
            assert (found.code, found.reason, found.answers) == (UNAUTHENTICATED, reason, []), (name, wrong)


def test_no_rpc_answers_to_a_credential_for_something_else(walk: Walk) -> None:
    tried = 0
    holders = [*walk.credentials.tenant.items(), *walk.credentials.operator.items()]
    for name, method in walk.methods.items():
        for scope, credential in holders:
            needed = RPCS[name].scope, RPCS[name].of_operators
            if scope in needed:
                continue
            found = ask(credential, name, method, requests(name, walk.theirs))
            assert (found.code, found.reason) == (DENIED, "SCOPE_MISSING"), (name, scope)
            assert found.details in [{"scope": one} for one in needed], (name, scope)
            assert found.answers == []
            tried += 1
    assert tried > 5 * len(RPCS)


def test_half_a_surrogate_pair_in_any_string_is_an_invalid_argument(walk: Walk) -> None:
    tried = 0
    for name, method in walk.methods.items():
        scope = RPCS[name].scope
        credential = walk.credentials.tenant.get(scope) or walk.credentials.operator[scope]
        for field, raw in with_half_a_pair(method):
            found = ask_raw(credential, name, raw)
            assert found is grpc.StatusCode.INVALID_ARGUMENT, (name, field, found)
            tried += 1
    assert tried > 2 * len(RPCS)


def test_another_tenants_ids_are_answered_as_unknown_ones(walk: Walk) -> None:
    # What makes something of the stranger's own by that name comes last: to look for a process is to have a sandbox,
    # and while a run of his is under way, the thread is busy.
    def late(name: str) -> tuple[bool, bool, bool, str]:
        return name == "RunService/StartRun", RPCS[name].makes, name.startswith("ProcessService"), name

    for name in sorted(walk.methods, key=late):
        rpc, method = RPCS[name], walk.methods[name]
        other = walk.credentials.other
        credential = other.get(rpc.scope, other["run"])  # no tenant operates
        theirs, absent = (
            ask(credential, name, method, requests(name, ids)).without(ids) for ids in (walk.theirs, ABSENT)
        )
        assert theirs == absent, name
        assert theirs.code is rpc.stranger, (name, theirs)


def test_nothing_was_done_to_what_another_tenant_named(walk: Walk) -> None:
    """Comes last: what the walk tried to cancel, stop, remove, answer and delete is as it was."""
    tool, run, approve = (walk.credentials.tenant[scope] for scope in ("tool", "run", "approve"))
    for name, credential, said in (
        ("ProcessService/ListProcesses", tool, "running: true"),
        ("SandboxService/GetSandbox", tool, "theirs-alone"),
        ("ThreadService/GetThread", run, "theirs-alone"),
        ("RunService/GetRun", run, "RUN_STATUS_FAILED"),
        ("ApprovalService/GetApproval", approve, "APPROVAL_STATUS_PENDING"),
        ("ApprovalService/ListGrants", approve, "in_force: true"),
    ):
        found = ask(credential, name, walk.methods[name], requests(name, walk.theirs))
        assert said in found.answers[0], (name, found)
