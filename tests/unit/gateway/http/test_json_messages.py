"""Messages as JSON: what an agent wrote does not keep its approver from reading it."""

from __future__ import annotations

import json

import pytest

from airlock.v1 import tool_service_pb2
from gateway.http.json_messages import encoded


@pytest.mark.parametrize("arguments", ['{"a": 1e999}', '{"a": NaN}', "[" * 100_000 + "]" * 100_000, "{", "9" * 5000])
def test_a_field_of_json_that_is_no_json_value_is_shown_as_text(arguments: str) -> None:
    shown = json.loads(encoded(tool_service_pb2.CallToolRequest(arguments_json=arguments)))
    assert shown["arguments_json"] == arguments
    assert "arguments" not in shown


@pytest.mark.parametrize("arguments", [{"a": "\ud800"}, {"a": "\u2028"}, {"a": [1, 2.5, None]}])
def test_any_other_is_shown_as_its_value(arguments: object) -> None:
    message = tool_service_pb2.CallToolRequest(arguments_json=json.dumps(arguments))
    assert json.loads(encoded(message))["arguments"] == arguments
    assert encoded(message).isascii()
