"""Names of tools on the wire: accepted by endpoints, and never those of another tool."""

from __future__ import annotations

import re
from itertools import product

from agent.messages import Message, ToolCall, ToolSpec
from agent.models.tool_names import wire_name, with_own_names


def test_a_tool_of_a_server_is_sent_as_server_and_name() -> None:
    assert wire_name("notes/search") == "notes__search"
    assert wire_name("execute") == "execute"


def test_no_two_tools_share_a_name_and_endpoints_accept_all() -> None:
    parts = ["a", "b", "a_b", "a-b", "a_", "_a", "a__b", "a.b", "a/b", "A", "x" * 80]
    servers = ["a", "b", "a_b", "a-b", "a0"]
    names = [f"{server}/{tool}" for server, tool in product(servers, parts)]
    sent = {wire_name(name): name for name in names}
    assert len(sent) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in sent)


def test_calls_get_the_tools_own_names_back() -> None:
    tools = [ToolSpec(name, "", {}) for name in ("ls", "notes/search", "notes/a.b")]
    sent = [wire_name(tool.name) for tool in tools] + ["made__up"]
    calls = tuple(ToolCall(id=str(place), name=name, arguments={}) for place, name in enumerate(sent))
    message = with_own_names(Message(role="assistant", tool_calls=calls), tools)
    assert [call.name for call in message.tool_calls] == ["ls", "notes/search", "notes/a.b", "made__up"]
