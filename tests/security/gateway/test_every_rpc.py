"""Every RPC that the gateway says it has: with credentials that must not open it, and with another tenant's ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import make_home, served
from tests.security.gateway.rpc_table import RPCS, Ids
from tests.security.gateway.walked_gateway import (
    ABSENT,
    OTHER,
    POLICY,
    Keys,
    ask,
    bearer,
    described,
    make_keys,
    make_things,
    requests,
)

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@dataclass(frozen=True)
class Walk:
    """The gateway, its methods, and who has what there."""

    channel: grpc.Channel
    methods: dict[str, Any]
    keys: Keys
    theirs: Ids


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    home = make_home(tmp_path_factory.mktemp("walked"))
    (home.config.parent / "policies" / "default.yaml").write_text(POLICY, encoding="utf-8")
    home.add_tenant(OTHER, POLICY)
    # No model answers there: a run is made and fails, and it is there.
    home.configure(model={"base_url": "http://127.0.0.1:9/v1", "name": "none"})
    with served(home, {"OPENAI_API_KEY": "none"}) as gateway, grpc.insecure_channel(gateway.address) as channel:
        keys = asyncio.run(make_keys(home))
        theirs = asyncio.run(make_things(gateway.address, home, keys))
        yield Walk(channel, described(channel), keys, theirs)
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


def test_no_rpc_is_forgotten_here(walk: Walk) -> None:
    assert set(walk.methods) == set(RPCS)


def test_no_rpc_answers_without_a_credential_and_none_says_why_a_key_is_none(walk: Walk) -> None:
    for name, method in walk.methods.items():
        request = requests(name, walk.theirs)
        known = {
            ask(walk.channel, name, method, request, bearer(key)).said
            for key in ("alk_" + "x" * 43, walk.keys.revoked, walk.keys.expired)
        }
        assert len(known) == 1, name
        for metadata in (
            (),
            (bearer("alk_" + "x" * 43),),
            (bearer(walk.keys.revoked),),
            (bearer(walk.keys.expired),),
            (("authorization", "Basic YWRtaW46YWRtaW4="),),
            (bearer("x" * 5000),),
            (bearer("a.b.c"),),
        ):
            found = ask(walk.channel, name, method, request, *metadata)
            assert (found.code, found.reason, found.answers) == (UNAUTHENTICATED, "UNAUTHENTICATED", []), name


def test_no_rpc_answers_to_a_key_for_something_else(walk: Walk) -> None:
    tried = 0
    holders = [*walk.keys.tenant.items(), *((scope, secret) for scope, secret in walk.keys.operator.items())]
    for name, method in walk.methods.items():
        for scope, secret in holders:
            if scope == RPCS[name].scope:
                continue
            found = ask(walk.channel, name, method, requests(name, walk.theirs), bearer(secret))
            assert (found.code, found.reason) == (DENIED, "SCOPE_MISSING"), (name, scope)
            assert found.details == {"scope": RPCS[name].scope}, (name, scope)
            assert found.answers == []
            tried += 1
    assert tried > 5 * len(RPCS)


def test_another_tenants_ids_are_answered_as_those_of_nobody(walk: Walk) -> None:
    # What makes something of the stranger's own by that name comes last: to look for a process is to have a sandbox,
    # and while a run of his is under way, the thread is busy.
    def late(name: str) -> tuple[bool, bool, bool, str]:
        return name == "RunService/StartRun", RPCS[name].makes, name.startswith("ProcessService"), name

    for name in sorted(walk.methods, key=late):
        rpc, method = RPCS[name], walk.methods[name]
        secret = walk.keys.other.get(rpc.scope, walk.keys.other["run"])  # no tenant's key operates
        theirs, absent = (
            ask(walk.channel, name, method, requests(name, ids), bearer(secret)).without(ids)
            for ids in (walk.theirs, ABSENT)
        )
        assert theirs == absent, name
        assert theirs.code is rpc.stranger, (name, theirs)


def test_nothing_was_done_to_what_another_tenant_named(walk: Walk) -> None:
    """Comes last: what the walk tried to cancel, stop, remove, answer and delete is as it was."""
    tool, run, approve = (bearer(walk.keys.tenant[scope]) for scope in ("tool", "run", "approve"))
    for name, key, said in (
        ("ProcessService/ListProcesses", tool, "running: true"),
        ("SandboxService/GetSandbox", tool, "theirs-alone"),
        ("ThreadService/GetThread", run, "theirs-alone"),
        ("RunService/GetRun", run, "RUN_STATUS_FAILED"),
        ("ApprovalService/GetApproval", approve, "APPROVAL_STATUS_PENDING"),
        ("ApprovalService/ListGrants", approve, "in_force: true"),
    ):
        found = ask(walk.channel, name, walk.methods[name], requests(name, walk.theirs), key)
        assert said in found.answers[0], (name, found)
