"""What a person sees of a run with subagents."""

import io
from typing import Any

from rich.console import Console

from gateway.cli.run_view import NestedRunView


def shown(*events: tuple[str, dict[str, Any]]) -> list[str]:
    stream = io.StringIO()
    view = NestedRunView(Console(file=stream, width=60))
    for event_type, payload in events:
        view.feed(event_type, payload)
    return stream.getvalue().splitlines()


def spawn(call_id: str, **within: str) -> tuple[str, dict[str, Any]]:
    return "tool_call_started", {"call_id": call_id, "name": "spawn_subagent", "arguments": {}, **within}


def test_each_depth_is_indented_under_the_call_that_spawned_it() -> None:
    lines = shown(
        spawn("c1"),
        ("subagent_started", {"agent": "reader", "task": "read", "within": "c1"}),
        spawn("c2", within="c1"),
        ("subagent_started", {"agent": "deeper", "task": "look", "within": "c2"}),
        ("subagent_finished", {"status": "completed", "stop": {"reason": "done"}, "within": "c2"}),
        ("subagent_finished", {"status": "stopped", "stop": {"reason": "limit"}, "within": "c1"}),
        ("run_finished", {"status": "completed", "stop": {"reason": "answered"}}),
    )
    assert "┆ subagent reader" in lines
    assert "┆ ┆ subagent deeper" in lines
    assert any(line.startswith("┆ ┆ ✓ subagent completed: done") for line in lines)
    assert any(line.startswith("┆ ✗ subagent stopped: limit") for line in lines)
    assert any(line.startswith("■ completed: answered") for line in lines)


def test_lines_of_two_subagents_that_come_in_turn_stay_whole() -> None:
    lines = shown(
        spawn("c1"),
        spawn("c2"),
        ("subagent_started", {"agent": "one", "task": "x", "within": "c1"}),
        ("subagent_started", {"agent": "two", "task": "x", "within": "c2"}),
        ("model_delta", {"text": "first half", "within": "c1"}),
        ("model_delta", {"text": "other", "within": "c2"}),
        ("model_delta", {"text": "second half ", "within": "c1"}),
        ("run_finished", {"status": "completed", "stop": None}),
    )
    assert lines[lines.index("┆ first half") - 1 : -2] == [
        "┆ subagent one",
        "┆ first half",
        "┆ subagent two",
        "┆ other",
        "┆ subagent one",
        "┆ second half ",
    ]


def test_a_list_of_todos_is_shown_when_it_changes() -> None:
    todos = [{"id": "1", "title": "look", "status": "done"}, {"id": "2", "title": "\x1b[2Jmend", "status": "pending"}]
    lines = shown(
        ("state_changed", {"metadata": {"todos.list": todos}}),
        ("state_changed", {"metadata": {"todos.list": "nonsense", "other": 1}}),
        ("state_changed", {"metadata": None}),
    )
    assert lines == ["  ☑ look", "  ☐ ␛[2Jmend"]
