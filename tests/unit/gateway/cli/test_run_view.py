"""What a person sees of a run."""

import io
from typing import Any

import pytest
from rich.console import Console

from examples.demo.run_summary import RunSummary
from gateway.cli.printable import one_line, short_arguments
from gateway.cli.run_view import RunView
from gateway.support.printable_text import printable

EVICTED = {"path": "/workspace/.airlock/output/c1.txt", "size_bytes": 100_000, "lines": 2_000, "incomplete": False}
HOSTILE = "[bold]x[/bold]\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp\u202c\r\x00\ud800\x7f"


def shown(*events: tuple[str, dict[str, Any]], terminal: bool = False, width: int = 80) -> str:
    stream = io.StringIO()
    view = RunView(Console(file=stream, force_terminal=terminal, width=width))
    for event_type, payload in events:
        view.feed(event_type, payload)
    return stream.getvalue()


def started(call_id: str = "c1", name: str = "execute", **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tool_call_started", {"call_id": call_id, "name": name, "arguments": arguments}


def output(text: str, call_id: str = "c1") -> tuple[str, dict[str, Any]]:
    return "tool_output", {"call_id": call_id, "stream": "stdout", "text": text}


def finished(call_id: str = "c1", name: str = "execute", **fields: Any) -> tuple[str, dict[str, Any]]:
    usual = {
        "call_id": call_id,
        "name": name,
        "verdict": "allow",
        "rule": "run-tests",
        "reason": "tests are what the agent is for",
        "outcome": "exited",
        "exit_code": 0,
        "is_error": False,
        "content": "",
        "evicted": None,
        "duration_ms": 12.0,
    }
    return "tool_call_finished", {**usual, **fields}


def test_nothing_that_steers_a_terminal_survives() -> None:
    text = printable(HOSTILE)
    assert not [character for character in text if ord(character) < 32 or 0x7F <= ord(character) < 0xA0]
    assert "\u202e" not in text
    text.encode("utf-8")


def test_lines_and_tabs_survive() -> None:
    assert printable("a\tb\r\nc\n") == "a\tb\nc\n"


@pytest.mark.parametrize(
    "event",
    [
        ("run_started", {"task": HOSTILE, "agent": HOSTILE, "thread": HOSTILE}),
        ("step_started", {"step": HOSTILE}),
        ("model_delta", {"text": f"{HOSTILE} "}),
        ("reasoning_delta", {"text": f"{HOSTILE} "}),
        ("model_finished", {"text": HOSTILE, "tool_calls": [{"id": "c1", "name": HOSTILE, "arguments": None}]}),
        ("tool_call_started", {"call_id": "c1", "name": HOSTILE, "arguments": {HOSTILE: HOSTILE, "command": HOSTILE}}),
        ("hook_verdict", {"call_id": "c1", "verdict": "deny", "rule": HOSTILE, "reason": HOSTILE}),
        ("hook_verdict", {"call_id": "c1", "verdict": "ask", "rule": HOSTILE, "reason": HOSTILE}),
        ("hook_failed", {"hook": HOSTILE, "point": HOSTILE, "on_failure": HOSTILE, "error": HOSTILE}),
        ("run_finished", {"status": HOSTILE, "stop": {"hook": HOSTILE, "rule": HOSTILE, "reason": HOSTILE}}),
        finished(name=HOSTILE, rule=HOSTILE, outcome=HOSTILE, content=HOSTILE),
        finished(content=HOSTILE, evicted={**EVICTED, "path": HOSTILE}),
    ],
    ids=lambda event: event[0],
)
def test_no_field_of_any_event_reaches_a_pipe_as_a_control_character_or_as_markup(event: Any) -> None:
    text = shown(event)
    assert text.strip()
    assert not [character for character in text if character != "\n" and not character.isprintable()]
    assert "bold" not in text or "[bold]x[/bold]" in text


def test_on_a_terminal_only_the_styles_of_the_view_itself_are_escape_sequences() -> None:
    text = shown(started(command=HOSTILE), output(HOSTILE + "\n"), finished(content=HOSTILE), terminal=True)
    assert "\x1b[" in text
    assert "\x1b[2J" not in text
    assert "\x1b]" not in text
    assert "\x9b" not in text


def test_the_summary_shows_no_control_character_either() -> None:
    summary = RunSummary()
    summary.feed(*finished(name=HOSTILE, rule=HOSTILE, verdict=HOSTILE, evicted={**EVICTED, "path": HOSTILE}))
    summary.feed("run_finished", {"status": "failed", "stop": {"hook": HOSTILE, "rule": HOSTILE, "reason": HOSTILE}})
    stream = io.StringIO()
    Console(file=stream, width=80).print(summary.table())
    assert not [character for character in stream.getvalue() if character != "\n" and not character.isprintable()]


def test_a_call_is_shown_with_its_command_outcome_rule_and_time() -> None:
    text = shown(started(command="python3 -m unittest", timeout_s=60), finished(exit_code=1, is_error=True))
    assert text.splitlines() == [
        "→ execute python3 -m unittest timeout_s=60",
        "  ✗ exited 1 · rule run-tests · 12 ms",
    ]


def test_long_output_is_cut_to_its_head_and_its_tail() -> None:
    content = "".join(f"line {number}\n" for number in range(1, 31))
    lines = shown(started(command="seq"), finished(content=content)).splitlines()
    assert [line.strip(" │") for line in lines[1:-1]] == [
        *(f"line {number}" for number in range(1, 5)),
        "… 23 more lines",
        *(f"line {number}" for number in range(28, 31)),
    ]


def test_live_output_is_not_shown_a_second_time_when_the_call_finishes() -> None:
    content = "one\ntwo\n\nthree\n"
    text = shown(started(command="x"), output("one\nt"), output("wo\n\nthree\n"), finished(content=content))
    assert [text.count(word) for word in ("one", "two", "three")] == [1, 1, 1]


def test_live_output_is_shown_before_the_call_has_finished() -> None:
    assert "│ one" in shown(started(command="x"), output("one\n"))


def test_output_of_calls_that_run_side_by_side_is_shown_under_the_call_it_belongs_to() -> None:
    lines = shown(
        started("c1", "read_file", path="/workspace/a"),
        started("c2", "read_file", path="/workspace/b"),
        output("early\n", "c1"),
        finished("c2", "read_file", content="of b"),
        finished("c1", "read_file", content="of a"),
    ).splitlines()
    assert lines.index("→ read_file /workspace/b") + 1 == lines.index("  │ of b")
    assert lines.index("← read_file /workspace/a") + 1 == lines.index("  │ of a")
    assert "  │ early" not in lines


def test_a_blocked_call_is_shown_once_with_rule_and_reason() -> None:
    text = shown(
        started(command="pip install x"),
        ("hook_verdict", {"call_id": "c1", "verdict": "deny", "rule": "no-network", "reason": "there is no network"}),
        finished(verdict="deny", rule="no-network", reason="there is no network", outcome="blocked", is_error=True),
    )
    assert text.count("✗ blocked by rule no-network: there is no network") == 1
    assert "blocked ·" not in text


def test_a_blocked_call_among_others_is_shown_once() -> None:
    denied = {"verdict": "deny", "rule": "no-network", "reason": "there is no network"}
    lines = shown(
        started("c1", command="pip install x"),
        ("hook_verdict", {"call_id": "c1", **denied}),
        started("c2", command="ls"),
        finished("c1", **denied, outcome="blocked", is_error=True),
        finished("c2"),
    ).splitlines()
    assert [line for line in lines if "pip install x" in line] == ["→ execute pip install x"]
    assert sum("blocked by rule" in line for line in lines) == 1


def test_a_run_that_goes_on_shows_neither_the_question_nor_a_blocked_call_again() -> None:
    denied = {"verdict": "deny", "rule": "never", "reason": "no"}
    asked = ("hook_verdict", {"call_id": "c1", "verdict": "ask", "rule": "push", "reason": "public"})
    step = (
        started("c1", command="git push"),
        started("c2", command="rm x"),
        asked,
        ("hook_verdict", {"call_id": "c2", **denied}),
    )
    waits = {"approvals": [{"approval_id": "apr_1", "call_id": "c1", "name": "execute", "rule": "push"}]}
    lines = shown(
        *step,
        ("run_suspended", {"step": 1, **waits}),
        ("run_resumed", {"step": 1}),
        *step,
        finished("c1", rule="push"),
        finished("c2", **denied, outcome="blocked", is_error=True),
    ).splitlines()
    after = lines[lines.index("run continues after step 1") + 1 :]
    assert after == ["→ execute git push", "  ✓ exited 0 · rule push · 12 ms"]
    assert sum("? waiting for approval" in line for line in lines) == 1


def test_the_last_lines_name_every_policy_that_judged() -> None:
    lines = shown(
        finished("c1", policy_version="policy_a"),
        finished("c2", policy_version="policy_a"),
        finished("c3", policy_version="policy_b"),
        ("run_finished", {"status": "completed", "stop": {}}),
    ).splitlines()
    assert lines[-2] == "judged by policy_a, then policy_b"


def test_an_allowing_verdict_is_not_news() -> None:
    assert shown(("hook_verdict", {"call_id": "c1", "verdict": "allow", "rule": "files"})) == ""


def test_what_a_call_connected_to_is_shown_under_it_and_what_was_refused_with_its_rule() -> None:
    reached = {"call_id": "c1", "host": "pypi.org", "port": 443, "verdict": "allow", "outcome": "completed"}
    refused = {"call_id": "c1", "host": "fd00::1", "port": 80, "verdict": "deny", "rule": "none", "reason": HOSTILE}
    lines = shown(
        started(command="x"),
        ("connection_ended", {**reached, "bytes_up": 1500, "bytes_down": 2_000_000}),
        ("connection_ended", refused),
        finished(content="done"),
        ("connection_ended", reached),
        width=200,
    ).splitlines()
    assert lines[:2] == ["→ execute x", "  ⇄ pypi.org:443 completed, 1,500 bytes up, 2,000,000 down"]
    assert lines[2].startswith("  ⇄ [fd00::1]:80 refused by rule none: [bold]x")
    assert "\x1b" not in lines[2]
    assert lines[-1] == "  ⇄ pypi.org:443 completed, 0 bytes up, 0 down"


def test_an_eviction_names_the_path_the_size_and_what_the_context_was_spared() -> None:
    text = shown(started(command="x"), finished(content="head\ntail\n", evicted=EVICTED))
    assert "evicted to /workspace/.airlock/output/c1.txt" in text
    assert "100,000 bytes, 2,000 lines; 99,990 bytes kept out of the context" in text


def test_model_text_that_came_in_pieces_is_not_repeated_when_it_is_whole() -> None:
    text = shown(("step_started", {"step": 1}), ("model_delta", {"text": "Hi"}), ("model_finished", {"text": "Hi"}))
    assert text.count("Hi") == 1


def test_model_text_of_an_endpoint_that_does_not_stream_is_shown_whole() -> None:
    assert "Hi" in shown(("step_started", {"step": 1}), ("model_finished", {"text": "Hi"}))


def test_reasoning_has_lines_of_its_own_and_does_not_stand_for_the_answer() -> None:
    events = [("reasoning_delta", {"text": "Let me "}), ("reasoning_delta", {"text": "look."})]
    streamed = shown(*events, ("model_delta", {"text": "I look."}), ("model_finished", {"text": "I look."}))
    whole = shown(*events, ("model_finished", {"text": "I look."}))
    assert streamed == whole == "Let me look.\nI look.\n"


def test_a_wait_for_the_model_is_shown() -> None:
    text = shown(("step_started", {"step": 1}), ("model_waiting", {"step": 1, "reason": f"its turn {HOSTILE}"}))
    assert "waiting for the model: its turn" in text
    assert "\x1b" not in text
    summary = RunSummary()
    summary.feed("run_finished", {"status": "completed", "model_ms": 1.0, "model_wait_ms": 36_000.0})
    stream = io.StringIO()
    Console(file=stream, width=100).print(summary.table())
    assert "model 0.001 s, waiting for the model 36.000 s, hooks" in stream.getvalue()


def test_a_failed_attempt_is_followed_by_what_is_tried_next() -> None:
    retry = {"step": 1, "attempt": 2, "attempts": 3, "wait_s": 0.5}
    text = shown(("model_failed", {"step": 1, "error": "nobody there"}), ("model_retrying", retry))
    assert text.split("\n")[-3:] == [
        "✗ the model failed: nobody there",
        "  it is asked again in 0.5 s, attempt 2 of 3",
        "",
    ]


def test_the_last_line_says_why_the_run_stopped_and_who_said_so() -> None:
    stop = {"hook": "limits", "rule": "max_steps", "reason": "25 of 25 steps"}
    text = shown(("run_finished", {"status": "stopped", "stop": stop}))
    assert text.splitlines()[-1] == "■ stopped: 25 of 25 steps (hook limits, rule max_steps)"


def test_an_event_that_is_not_known_prints_nothing() -> None:
    assert shown(("feed", {}), ("of_tomorrow", {"text": "x"})) == ""


def test_lines_of_a_long_output_keep_to_the_width_of_the_console() -> None:
    text = shown(started(command="x"), finished(content=f"{'y' * 300}\n" * 9), width=80)
    assert max(len(line) for line in text.splitlines()) == 80


def test_the_one_line_that_grep_found_is_shown_with_what_matters_at_its_end() -> None:
    text = shown(started(name="grep", pattern="x"), finished(content=f"/workspace/a:1:{'y' * 100}x\n"), width=80)
    assert f"{'y' * 100}x\n" in text


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_model_text_is_broken_between_words_however_it_comes_in_pieces(size: int) -> None:
    text = "A statement loses its last day,\n  and a year is off by a little."
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    lines = shown(*(("model_delta", {"text": piece}) for piece in pieces), ("model_finished", {}), width=20)
    assert lines.split("\n") == ["A statement loses ", "its last day,", "  and a year is off ", "by a little.", ""]


def test_a_word_longer_than_the_console_is_shown_before_it_has_ended() -> None:
    assert "w" * 100 in shown(("model_delta", {"text": "w" * 100}), width=20)


def test_a_call_that_comes_back_later_is_named_by_its_subject_alone() -> None:
    lines = shown(
        started("c1", "edit_file", path="/workspace/a", old_text="x"),
        started("c2", "edit_file", path="/workspace/b", old_text="x"),
        finished("c1", "edit_file"),
    ).splitlines()
    assert lines[0] == '→ edit_file /workspace/a old_text="x"'
    assert lines[2] == "← edit_file /workspace/a"


def test_arguments_put_the_path_first_and_cut_long_values() -> None:
    assert short_arguments({"content": "z" * 500, "path": "/workspace/a"}).startswith("/workspace/a ")
    assert len(short_arguments({"content": "z" * 500, "path": "/workspace/a"})) < 100
    assert short_arguments(None) == "(arguments are not a JSON object)"


def test_a_long_line_is_cut_with_a_sign() -> None:
    assert one_line("abc\n def", 5) == "abc …"


def test_the_summary_adds_up_calls_verdicts_evictions_and_times() -> None:
    summary = RunSummary()
    summary.feed(*finished())
    summary.feed(*finished(name="ls", rule="files", outcome="completed", exit_code=None))
    summary.feed(*finished(verdict="deny", rule="no-network", outcome="blocked"))
    summary.feed(*finished(content="x" * 4_000, evicted=EVICTED))
    stop = {"hook": "tool_calls", "rule": "answered", "reason": "the model answered"}
    times = {"steps": 3, "hooks_ms": 5.0, "model_ms": 1_500.0, "tools_ms": 250.0}
    summary.feed("run_finished", {"status": "completed", "stop": stop, "answer": "done", **times})
    stream = io.StringIO()
    Console(file=stream, width=100).print(summary.table())
    text = stream.getvalue()
    assert (summary.status, summary.answer) == ("completed", "done")
    assert "4 in 3 steps: execute 3, ls 1" in text
    assert "allow   2  rule run-tests" in text
    assert "deny    1  rule no-network" in text
    assert "1: 96,000 bytes kept out of the context" in text
    assert "model 1.500 s, hooks 0.005 s, sandbox 0.250 s" in text
    assert "the model answered (hook tool_calls, rule answered)" in text


@pytest.mark.parametrize(
    "because, said",
    [
        ("gateway_lost", ", because its gateway was lost (gateway_lost)"),
        ("approval", ", because its approval was answered (approval)"),
        ("[red]moon", ", because [red]moon"),
        (None, ""),
    ],
)
def test_a_run_that_goes_on_says_why(because: str | None, said: str) -> None:
    assert shown(("run_resumed", {"step": 2, "because": because})).splitlines() == [f"run continues after step 2{said}"]


def test_the_end_of_a_run_says_what_it_used_by_agent_and_model() -> None:
    usage = {"input_tokens": 1234, "cached_input_tokens": 1000, "output_tokens": 56, "estimated_tokens": 7}
    use = {"agent": "default", "model": HOSTILE, "requests": 2, "usage": {**usage, "cost_usd": 0.0125}}
    helper = {"agent": "helper", "model": "m", "requests": 1, "usage": {}, "first_token_ms": None}
    stop = {"hook": "h", "rule": "r", "reason": "x"}
    models = [{**use, "first_token_ms": 412.3}, helper]
    text = shown(("run_finished", {"status": "completed", "stop": stop, "steps": 3, "models": models}), width=200)
    assert "steps: 3" in text
    assert "2 requests, 1,234 (1,000 cached) tokens in, 56 out, 7 of them estimated, $0.0125" in text
    assert "first text after 412 ms" in text
    assert "helper with m: 1 request, 0 tokens in, 0 out\n" in text
