"""MCP servers in the configuration: what is wrong with one is said with its place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config.agent_settings import AgentSettings


@pytest.mark.parametrize(
    "name, settings, why",
    [
        ("a__b", {"command": ["x"]}, "cannot name a server"),
        ("a/b", {"command": ["x"]}, "cannot name a server"),
        ("x" * 33, {"command": ["x"]}, "cannot name a server"),
        ("caller", {"command": ["x"]}, "cannot name a server"),
        ("a", {}, "set one of command"),
        ("a", {"command": ["x"], "url": "https://a.example/mcp"}, "set one of command"),
        ("a", {"url": "ftp://a.example"}, "write https://HOST/PATH"),
        ("a", {"url": "https://user:secret@a.example"}, "without a user"),
        ("a", {"url": "https://a.example", "env": {"A": "b"}}, "are for a command"),
        ("a", {"command": ["x"], "credential": "c"}, "are for a url"),
        ("a", {"command": ["x"], "cwd": "work"}, "absolute path"),
        ("a", {"command": ["x"], "env": {"A B": "b"}}, "not the name of a variable"),
        ("a", {"url": "https://a.example", "headers": {"Mcp-Session-Id": "1"}}, "sets this one itself"),
        ("a", {"url": "https://a.example", "headers": {"X": "a\r\nY: b"}}, "printable ASCII"),
        ("a", {"command": ["x"], "trust": True}, "trust"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused(name: str, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        AgentSettings.model_validate({"mcp": {"servers": {name: settings}}})


def test_tools_of_the_first_sight_are_accepted_by_the_operator_unless_said_otherwise() -> None:
    agent = AgentSettings.model_validate({"mcp": {"servers": {"notes": {"command": ["notes"]}}}})
    assert agent.mcp.servers["notes"].pins == "operator"
