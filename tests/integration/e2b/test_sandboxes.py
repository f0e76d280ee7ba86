"""The life of sandboxes by E2B's SDK, and who may use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import httpx2 as httpx
import pytest
from e2b import Sandbox, SandboxException, SandboxQuery, SandboxState, TimeoutException
from e2b.exceptions import AuthenticationException, NotFoundException, SandboxNotFoundException

from gateway.client import AuditQuery, Client
from gateway.errors import NotFound
from tests.integration.e2b.conftest import Connection, connection_of
from tests.integration.http.conftest import Listening
from tests.waiting import eventually

Make = Callable[..., Sandbox]


def test_a_sandbox_is_created_shown_listed_and_killed(make_sandbox: Make, connection: Connection) -> None:
    sandbox = make_sandbox(metadata={"job": "a b&c"}, timeout=120)
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert (info.template_id, info.metadata, info.state) == ("base", {"job": "a b&c"}, SandboxState.RUNNING)
    assert 60 < (info.end_at - datetime.now(UTC)).total_seconds() <= 120
    (listed,) = Sandbox.list(query=SandboxQuery(metadata={"job": "a b&c"}), **connection).next_items()
    assert listed.sandbox_id == sandbox.sandbox_id
    assert Sandbox.list(query=SandboxQuery(metadata={"job": "other"}), **connection).next_items() == []
    (metrics,) = sandbox.get_metrics()
    assert 0 < metrics.mem_used < metrics.mem_total
    assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()
    with pytest.raises(TimeoutException, match="killed or reached its timeout"):
        sandbox.commands.run("true")


def test_a_list_comes_in_pages_both_ways(make_sandbox: Make, connection: Connection) -> None:
    made = [make_sandbox(metadata={"paged": "yes"}).sandbox_id for _ in range(3)]
    for order, expected in (("asc", made), ("desc", made[::-1])):
        query = SandboxQuery(metadata={"paged": "yes"}, state=[SandboxState.RUNNING])
        pages = Sandbox.list(query=query, limit=2, order=order, **connection)
        first = [one.sandbox_id for one in pages.next_items()]
        assert pages.has_next
        assert [*first, *(one.sandbox_id for one in pages.next_items())] == expected
        assert not pages.has_next


def test_a_paused_sandbox_keeps_its_files_and_not_its_processes(make_sandbox: Make, connection: Connection) -> None:
    sandbox = make_sandbox()
    sandbox.files.write("kept", "text")
    running = sandbox.commands.run("exec sleep 600", background=True)
    assert sandbox.pause()
    assert not sandbox.pause()
    assert not sandbox.is_running()
    with pytest.raises(TimeoutException, match="killed or reached"):
        running.wait()
    with pytest.raises(TimeoutException, match="it is paused"):
        sandbox.files.read("kept")
    assert sandbox.get_info().state == SandboxState.PAUSED
    again = Sandbox.connect(sandbox.sandbox_id, **connection)
    assert again.files.read("kept") == "text"
    assert again.commands.list() == []
    assert sandbox.is_running()


def test_a_sandbox_ends_in_time_also_without_a_client(
    make_sandbox: Make, connection: Connection, gateway: Listening
) -> None:
    killed, paused = make_sandbox(), make_sandbox(lifecycle={"on_timeout": "pause"})
    command = killed.commands.run("exec sleep 600", background=True)
    for one in (killed, paused):
        one.set_timeout(1)
    with pytest.raises(TimeoutException, match="killed or reached"):
        command.wait()
    thread = f"SELECT 1 FROM threads WHERE name = 'e2b-{killed.sandbox_id}'"
    assert eventually(lambda: not gateway.home.rows(thread), 60)
    state = f"SELECT state FROM e2b_sandboxes WHERE id = '{paused.sandbox_id}'"
    assert eventually(lambda: gateway.home.rows(state) == [("paused",)], 60)
    assert Sandbox.connect(paused.sandbox_id, timeout=60, **connection).is_running()


def test_traffic_resumes_a_sandbox_that_asked_for_it(make_sandbox: Make) -> None:
    sandbox = make_sandbox(lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.pause()
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    assert sandbox.get_info().state == SandboxState.RUNNING


def test_snapshots_and_forks_begin_with_the_same_files(make_sandbox: Make, connection: Connection) -> None:
    sandbox = make_sandbox()
    sandbox.files.write("file", "first")
    snapshot = sandbox.create_snapshot()
    sandbox.files.write("file", "second")
    assert make_sandbox(template=snapshot.snapshot_id).files.read("file") == "first"
    assert [one.snapshot_id for one in sandbox.list_snapshots().next_items()] == [snapshot.snapshot_id]
    (fork,) = sandbox.fork(count=1)
    assert isinstance(fork, Sandbox)
    assert fork.files.read("file") == "second"
    fork.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **connection)
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id, **connection)


def test_a_repeated_request_creates_one_sandbox(make_sandbox: Make) -> None:
    made = [make_sandbox(idempotency_key="order-4711").sandbox_id for _ in range(2)]
    assert made[0] == made[1]


def test_requests_that_are_repeated_at_once_create_one_sandbox(make_sandbox: Make) -> None:
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(make_sandbox, idempotency_key="order-at-once") for _ in range(4)]
        made = [one.result() for one in asked]
    assert len({one.sandbox_id for one in made}) == 1
    assert made[0].commands.run("echo here").stdout == "here\n"


@pytest.mark.parametrize(
    "options, said",
    [
        ({"template": "my-template"}, "template 'my-template' not found: use base or code-interpreter"),
        ({"mcp": {"server": {}}}, "mcp: name MCP servers in the configuration"),
        ({"network": {"allow_out": ["example.com"]}}, "network.allowOut: example.com: the policy lets no"),
        ({"network": {"rules": {"example.com": [{"transform": {"headers": {"a": "b"}}}]}}}, "network.rules: headers"),
        ({"timeout": 10**7}, "timeout: Input should be less than"),
    ],
)
def test_what_has_no_counterpart_is_one_clear_error(connection: Connection, options: Any, said: str) -> None:
    with pytest.raises(SandboxException) as refused:
        Sandbox.create(**options, **connection)
    assert said in str(refused.value)


def test_network_rules_that_the_policy_already_fulfils_are_taken(make_sandbox: Make) -> None:
    sandbox = make_sandbox(allow_internet_access=False, network={"deny_out": ["0.0.0.0/0"]})
    sandbox.update_network({"deny_out": ["8.8.8.8"]})
    with pytest.raises(SandboxException, match=r"network\.allowOut: 8\.8\.8\.8: the policy lets no"):
        sandbox.update_network({"allow_out": ["8.8.8.8"]})


def test_another_tenants_sandbox_is_not_there(sandbox: Sandbox, gateway: Listening) -> None:
    other = connection_of(gateway, gateway.other_key)
    for call in (Sandbox.connect, Sandbox.get_info):
        with pytest.raises(NotFoundException):
            call(sandbox.sandbox_id, **other)
    assert not Sandbox.kill(sandbox.sandbox_id, **other)
    assert Sandbox.list(**other).next_items() == []
    assert sandbox.is_running()


def test_a_token_is_for_one_sandbox(make_sandbox: Make, sandbox: Sandbox, gateway: Listening) -> None:
    token = make_sandbox()._envd_access_token
    for stolen in (token, f"{token}0", "x", None):
        sent = {"e2b-sandbox-id": sandbox.sandbox_id} | ({"x-access-token": stolen} if stolen else {})
        answer = httpx.get(f"{gateway.url}/e2b/files?path=x", headers=sent)
        assert (answer.status_code, answer.json()["code"]) == (401, 401)
        rpc = f"{gateway.url}/e2b/process.Process/List"
        answer = httpx.post(rpc, headers={**sent, "content-type": "application/json"}, content="{}")
        assert answer.status_code == 401


async def test_a_revoked_key_takes_its_tokens_along(gateway: Listening, connection: Connection) -> None:
    key = gateway.home.make_key("default", "run", "tool", "files")
    sandbox = Sandbox.create(**connection_of(gateway, key))
    try:
        assert sandbox.commands.run("true").exit_code == 0
        async with Client(gateway.address, gateway.home.make_key("", "operate")) as operator:
            (found,) = [one async for one in operator.keys(tenant="default") if key.startswith(one.shown.rstrip("."))]
            await operator.revoke_key(found.id)

        def refused() -> bool:
            try:
                sandbox.commands.run("true")
            except AuthenticationException:
                return True
            return False

        assert eventually(refused, 30)
    finally:
        Sandbox.kill(sandbox.sandbox_id, **connection)


async def test_what_is_done_is_on_record_as_the_keys(sandbox: Sandbox, gateway: Listening) -> None:
    sandbox.commands.run("echo recorded")
    sandbox.files.write("recorded", "x")
    sandbox.set_timeout(1800)
    sandbox.update_network({"deny_out": ["8.8.8.8"]})
    thread = f"e2b-{sandbox.sandbox_id}"
    async with Client(gateway.address, gateway.home.make_key("default", "audit")) as client:
        records = await client.audit(AuditQuery(thread=thread), limit=500)
    assert {one.actor for one in records} == {gateway.key[: len(records[0].actor)]}
    assert {"execute", "write_file"} <= {one.tool for one in records}
    changed = [json.loads(one.details) for one in records if one.kind == "e2b_sandbox_changed"]
    assert [next(iter(one)) for one in changed] == ["egress", "ends_us"]
    assert changed[0] == {"egress": {"deny": ["8.8.8.8"], "allow": []}}


async def test_killing_a_sandbox_deletes_its_thread(connection: Connection, gateway: Listening) -> None:
    sandbox = Sandbox.create(**connection)
    sandbox.kill()
    async with Client(gateway.address, gateway.key) as client:
        with pytest.raises(NotFound):
            await client.get_thread(f"e2b-{sandbox.sandbox_id}")


async def test_a_deleted_thread_is_not_made_again_by_its_sandbox(connection: Connection, gateway: Listening) -> None:
    sandbox = Sandbox.create(**connection)
    sandbox.files.write("file", "text")
    async with Client(gateway.address, gateway.key) as client:
        await client.delete_thread(f"e2b-{sandbox.sandbox_id}")
        with pytest.raises(TimeoutException, match="was not found"):
            sandbox.files.write("file", "text")
        with pytest.raises(NotFound):
            await client.get_thread(f"e2b-{sandbox.sandbox_id}")
