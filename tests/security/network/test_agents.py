"""Credentials of one agent, while calls of several agents are under way in one sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config.network_settings import CredentialSettings
from gateway.network.credentials import Caller
from gateway.network.decision import CallUnderWay
from gateway.network.opening import Opening
from tests.security.network.loopback_door import LoopbackDoor, allow, get, policy, status
from tests.unit.gateway.network.relayed import echo

REVIEWER, CODER = CallUnderWay("call_r", "", "reviewer"), CallUnderWay("call_c", "", "coder")
SECRET = "the-real-token-0123"


@pytest.mark.parametrize(
    "calls, agents, is_used",
    [
        ([REVIEWER], ["reviewer"], True),
        ([REVIEWER, REVIEWER], ["reviewer"], True),
        ([REVIEWER, CODER], ["reviewer", "coder"], True),
        ([REVIEWER, CODER], [], True),
        ([], [], True),
        ([CODER], ["reviewer"], False),
        ([CODER, REVIEWER], ["reviewer"], False),
        ([REVIEWER, CODER], ["reviewer"], False),
        ([REVIEWER, CODER, REVIEWER], ["reviewer"], False),
        ([], ["reviewer"], False),
    ],
)
async def test_a_credential_is_used_only_if_it_is_for_the_agents_of_all_calls(
    door: LoopbackDoor, tmp_path: Path, calls: list[CallUnderWay], agents: list[str], is_used: bool
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    server = await door.serve(echo, "api.test")
    settings = CredentialSettings.model_validate(
        {
            "name": "api",
            "env": "T",
            "hosts": [f"api.test:{server.port}"],
            "plain_http": True,
            "agents": agents,
            "secret": {"file": str(tmp_path / "secret")},
        }
    )
    trust = door.door.opening.trust
    door.door.opening = Opening("acme", [settings], b"secret", trust)
    door.policy = policy(allow("api.test"))
    placeholder = door.door.opening.credentials.environment(Caller("reviewer", "execute"))["T"]
    door.door.calls[:] = calls
    said = await door.ask(get("api.test", server.port, "/", f"Authorization: Bearer {placeholder}"))
    assert status(said) == (200 if is_used else 403)
    assert server.connections == (1 if is_used else 0)
    if not is_used:
        assert "the credential is not for" in json.loads(said.partition(b"\r\n\r\n")[2])["reason"]
    await door.recorded(1)
    (record,) = door.records
    assert (record.verdict, record.details.get("credential")) == (("allow", "api") if is_used else ("deny", None))
