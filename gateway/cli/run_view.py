"""Live view of a run and its subagents: RunView prints events as they arrive, Prose the text of the model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from gateway.cli.printable import (
    LINE_CHARS,
    SUBJECTS,
    kept_out_bytes,
    one_line,
    output_line,
    short_arguments,
    stop_line,
)
from gateway.cli.terminal import SafeConsole, out, print_json
from gateway.cli.usage_view import use_line
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from gateway.cli.command import GatewayCli
    from gateway.client import Event

_INDENT = "┆ "
# Views kept at once; beyond that, later lines of the oldest subagent start a new view.
_VIEWS_LIMIT = 256
HEAD_LINES = 4
TAIL_LINES = 3
_BECAUSE = {
    "approval": "its approval was answered (approval)",
    "gateway_lost": "its gateway was lost (gateway_lost)",
    "gateway_stopped": "its gateway was stopped (gateway_stopped)",
}
# Events that are shown as a line of their own: its text, with fields of the event, and its style.
_LINES = {
    "model_waiting": ("waiting for the model: {reason}", "dim"),
    "model_failed": ("✗ the model failed: {error}", "red"),
    "model_retrying": ("  it is asked again in {wait_s} s, attempt {attempt} of {attempts}", "dim"),
    "hook_failed": ("! hook {hook} failed at {point} ({on_failure}): {error}", "magenta"),
    "workspace_saved": ("files saved after step {step}: {snapshot_id}", "dim"),
    "workspace_not_saved": ("! files not saved after step {step}: {reason}", "magenta"),
}
_TODO_SIGNS = {"pending": ("☐", ""), "in_progress": ("▸", "bold"), "done": ("☑", "dim")}


class Prose:
    """Prints text that arrives in pieces, wrapped between words at the console's width."""

    def __init__(self, console: Console, style: str = "") -> None:
        self._console = console
        self._style = style
        self._word = ""
        self._column = 0
        self.empty = True

    def add(self, text: str) -> None:
        """Print all but the last word, which may continue in the next piece."""
        self.empty = False
        *words, self._word = re.split(r"(?<=\s)", self._word + printable(text).expandtabs(4))
        if len(self._word) > self._console.width:
            words, self._word = [*words, self._word], ""
        self._print("".join(self._broken(word) for word in words))

    def end(self) -> None:
        """Print the last word and end a line that was begun."""
        if self._word or self._column:
            self._print(self._broken(self._word))
            self._print("\n" if self._column else "")
            self._word, self._column = "", 0

    def _broken(self, word: str) -> str:
        breaks = self._column > 0 and self._column + cell_len(word.rstrip()) > self._console.width
        start = 0 if breaks else self._column
        self._column = 0 if word.endswith("\n") else start + cell_len(word)
        return f"\n{word}" if breaks else word

    def _print(self, text: str) -> None:
        self._console.print(Text(text, style=self._style), end="", soft_wrap=True)


@dataclass
class _Call:
    """A tool call on the screen, and how many of its output lines were shown live."""

    name: str
    arguments: str
    subject: str
    shown_lines: int = 0
    partial_line: str = ""
    refused: bool = False
    asked: bool = False


class RunView:
    """Prints a run, given every event in order; unknown payloads raise no error."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or SafeConsole()
        self._calls: dict[str, _Call] = {}
        self._open: set[str] = set()
        self._headed: str | None = None
        self._policies: list[str] = []
        self._prose = Prose(self.console)
        self._reasoning = Prose(self.console, "dim italic")

    def feed(self, event_type: str, payload: Mapping[str, Any]) -> None:
        show = getattr(self, f"_on_{event_type}", None)
        if show is None and event_type not in _LINES:
            return
        if event_type != "model_delta":
            self._prose.end()
        if event_type != "reasoning_delta":
            self._reasoning.end()
        version = one_line(payload.get("policy_version") or "", 80)
        if version and version not in self._policies:
            self._policies.append(version)
        if show is not None:
            show(payload)
        else:
            text, style = _LINES[event_type]
            fields = {name: one_line(value) for name, value in payload.items()}
            self._print(text.format_map(defaultdict(lambda: "?", fields)), style, wrap=True)

    def interrupt(self) -> None:
        """End a line that was begun, because another view prints next."""
        self._prose.end()
        self._reasoning.end()
        self._headed = None

    def _print(self, text: str, style: str = "", indent: int = 0, *, wrap: bool = False) -> None:
        """Print lines; `wrap` breaks them between words instead of leaving that to the terminal."""
        line = Text(text, style=style)
        for part in line.wrap(self.console, self.console.width - indent) if wrap else (line,):
            self.console.print(Text(" " * indent).append_text(part), soft_wrap=True)

    # --- the run, its steps and the model ---

    def _on_run_started(self, payload: Mapping[str, Any]) -> None:
        self._print(f"run of agent {one_line(payload.get('agent'))} in thread {one_line(payload.get('thread'))}", "dim")
        self._print(printable(payload.get("task", "")), "bold", wrap=True)

    def _on_run_resumed(self, payload: Mapping[str, Any]) -> None:
        self._headed = None
        because = payload.get("because")
        why = f", because {_BECAUSE.get(str(because), one_line(because, 80))}" if because else ""
        self._print(f"run continues after step {one_line(payload.get('step'))}{why}", "dim")

    def _on_run_suspended(self, payload: Mapping[str, Any]) -> None:
        for approval in payload.get("approvals") or ():
            asked = f"{one_line(approval.get('name'), 80)}, {one_line(approval.get('rule'), 80)}"
            why = one_line(approval.get("reason"))
            self._print(
                f"⏸ waiting for approval {one_line(approval.get('approval_id'), 80)} ({asked}): {why}", "yellow"
            )

    def _on_subagent_started(self, payload: Mapping[str, Any]) -> None:
        self._print(f"subagent {one_line(payload.get('agent'))}", "dim")
        self._print(printable(payload.get("task", "")), "bold", wrap=True)

    def _on_step_started(self, payload: Mapping[str, Any]) -> None:
        self._prose = Prose(self.console)
        self.console.print(Rule(Text(f"step {one_line(payload.get('step'))}", style="dim"), style="dim", align="left"))

    def _on_model_delta(self, payload: Mapping[str, Any]) -> None:
        self._prose.add(str(payload.get("text", "")))

    def _on_reasoning_delta(self, payload: Mapping[str, Any]) -> None:
        self._reasoning.add(str(payload.get("text", "")))

    def _on_model_finished(self, payload: Mapping[str, Any]) -> None:
        """Show the text of an endpoint that does not stream, which arrives only here."""
        if self._prose.empty:
            self._prose.add(str(payload.get("text") or ""))
            self._prose.end()
        for call in payload.get("tool_calls") or ():
            self._know(call.get("id"), call.get("name"), call.get("arguments"))

    # --- tool calls ---

    def _know(self, call_id: object, name: object, arguments: Mapping[str, Any] | None) -> _Call:
        subject = {key: value for key, value in (arguments or {}).items() if key in SUBJECTS}
        call = _Call(one_line(name, 80), short_arguments(arguments), short_arguments(subject))
        return self._calls.setdefault(str(call_id), call)

    def _head(self, payload: Mapping[str, Any], *, back: bool = False) -> _Call:
        """Print which call the next lines belong to, unless the last lines belong to it too."""
        call_id = str(payload.get("call_id"))
        call = self._calls.get(call_id) or self._know(call_id, payload.get("name", "?"), payload.get("arguments") or {})
        if self._headed != call_id:
            self._headed = call_id
            sign, arguments = ("←", call.subject) if back else ("→", call.arguments)
            line = Text.assemble((f"{sign} ", "cyan"), (call.name, "bold cyan"), " ", arguments)
            line.rstrip()
            self.console.print(line, soft_wrap=True)
        return call

    def _on_tool_call_started(self, payload: Mapping[str, Any]) -> None:
        self._know(payload.get("call_id"), payload.get("name"), payload.get("arguments"))
        call = self._calls.get(str(payload.get("call_id")))
        if call is not None and call.refused:
            return  # a resumed run repeats the calls of its step
        self._head(payload)
        self._open.add(str(payload.get("call_id")))

    def _on_hook_verdict(self, payload: Mapping[str, Any]) -> None:
        if payload.get("verdict") == "deny":
            self._refuse(payload)
        elif payload.get("verdict") == "ask":
            call = self._head(payload)
            if call.asked:
                return  # a resumed run repeats the question
            call.asked = True
            self._print(f"? waiting for approval, rule {one_line(payload.get('rule'))}", "yellow", 2)

    def _refuse(self, payload: Mapping[str, Any]) -> None:
        known = self._calls.get(str(payload.get("call_id")))
        if known is None or not known.refused:
            self._head(payload).refused = True
            blocked = f"✗ blocked by rule {one_line(payload.get('rule'))}: {one_line(payload.get('reason'))}"
            self._print(blocked, "red", 2, wrap=True)

    def _on_tool_output(self, payload: Mapping[str, Any]) -> None:
        """Show the first lines live while no other call runs, so that their source is clear."""
        call_id = str(payload.get("call_id"))
        call = self._calls.get(call_id)
        if call is None or self._open != {call_id} or call.shown_lines >= HEAD_LINES:
            return
        *lines, rest = (call.partial_line + str(payload.get("text", ""))).split("\n")
        call.partial_line = rest[:LINE_CHARS]
        for line in [line for line in lines if line.strip()][: HEAD_LINES - call.shown_lines]:
            self._head(payload)
            self._output_line(line)
            call.shown_lines += 1

    def _output_line(self, line: str, limit_chars: int = 0) -> None:
        self._print(f"│ {output_line(line, limit_chars or self.console.width - 4)}", "dim", 2)

    def _on_connection_ended(self, payload: Mapping[str, Any]) -> None:
        self._head(payload, back=str(payload.get("call_id")) not in self._open)
        host, port, rule = (one_line(payload.get(name), 80) for name in ("host", "port", "rule"))
        to = f"{f'[{host}]' if ':' in host else host}:{port}"
        if payload.get("verdict") == "deny":
            said = f"⇄ {to} refused{f' by rule {rule}' if rule else ''}: {one_line(payload.get('reason'))}"
            self._print(said, "red", 2, wrap=True)
            return
        up, down = (int(payload.get(name) or 0) for name in ("bytes_up", "bytes_down"))
        self._print(f"⇄ {to} {one_line(payload.get('outcome'), 80)}, {up:,} bytes up, {down:,} down", "dim", 2)

    def _on_tool_call_finished(self, payload: Mapping[str, Any]) -> None:
        self._open.discard(str(payload.get("call_id")))
        if payload.get("verdict") == "deny":
            self._refuse(payload)
            return
        call = self._head(payload, back=True)
        self._rest_of_output(call, payload)
        facts = [str(payload.get("outcome", "?"))]
        if payload.get("exit_code") is not None:
            facts[0] += f" {payload['exit_code']}"
        facts += [f"rule {payload['rule']}"] if payload.get("rule") else []
        facts.append(f"{float(payload.get('duration_ms') or 0):,.0f} ms")
        failed = bool(payload.get("is_error")) or bool(payload.get("exit_code"))
        self._print(f"{'✗' if failed else '✓'} {one_line(' · '.join(facts))}", "red" if failed else "green", 2)

    def _rest_of_output(self, call: _Call, payload: Mapping[str, Any]) -> None:
        """Show the rest of the first lines, how many lines are omitted, and the last lines."""
        content, note, evicted = (
            str(payload.get("content") or ""),
            str(payload.get("note") or ""),
            payload.get("evicted"),
        )
        lines = [line for line in f"{content}\n{note}".split("\n") if line.strip()]
        # A result of one or two lines is shown in full width, and so is a note.
        whole = lines if len(lines) <= 2 else note.split("\n")
        for line in lines[call.shown_lines : HEAD_LINES]:
            self._output_line(line, LINE_CHARS if line in whole else 0)
        rest = lines[max(call.shown_lines, HEAD_LINES) :]
        if evicted:
            for line in _eviction_lines(evicted, content):
                self._print(line, "yellow", 2)
        elif len(rest) > TAIL_LINES + 1:
            self._print(f"│ … {len(rest) - TAIL_LINES:,} more lines", "dim", 2)
        for line in rest if len(rest) == TAIL_LINES + 1 and not evicted else rest[-TAIL_LINES:]:
            self._output_line(line, LINE_CHARS if line in whole else 0)

    # --- the state ---

    def _on_state_changed(self, payload: Mapping[str, Any]) -> None:
        """Show a new list of todos; other state of hooks is only in the log."""
        todos = (payload.get("metadata") or {}).get("todos.list")
        if not isinstance(todos, list):
            return
        for todo in todos:
            if isinstance(todo, Mapping):
                sign, style = _TODO_SIGNS.get(str(todo.get("status")), ("·", ""))
                self._print(f"{sign} {one_line(todo.get('title'))}", style, 2)

    # --- what went wrong, and the end ---

    def _on_subagent_finished(self, payload: Mapping[str, Any]) -> None:
        completed = payload.get("status") == "completed"
        said = f"subagent {one_line(payload.get('status'))}: {stop_line(payload.get('stop'))}"
        self._print(f"{'✓' if completed else '✗'} {said}", "green" if completed else "red", wrap=True)

    def _on_run_finished(self, payload: Mapping[str, Any]) -> None:
        self.console.print(Rule(style="dim"))
        if self._policies:
            self._print(f"judged by {', then '.join(self._policies)}", "dim", wrap=True)
        if models := payload.get("models"):
            self._print(f"steps: {one_line(payload.get('steps'))}", "dim")
            for use in models:
                self._print(use_line(use), "dim", wrap=True)
        completed = payload.get("status") == "completed"
        said = f"■ {one_line(payload.get('status'))}: {stop_line(payload.get('stop'))}"
        self._print(said, "bold green" if completed else "bold red", wrap=True)


def _eviction_lines(evicted: Mapping[str, Any], content: object) -> tuple[str, str]:
    size = f"{int(evicted.get('size_bytes') or 0):,} bytes, {int(evicted.get('lines') or 0):,} lines"
    incomplete = " (incomplete)" if evicted.get("incomplete") else ""
    kept_out = f"{kept_out_bytes(evicted, content):,} bytes kept out of the context"
    return f"⇣ evicted to {one_line(evicted.get('path'))}{incomplete}", f"  {size}; {kept_out}"


async def followed(cli: GatewayCli, run_id: str, from_sequence: int = 1) -> AsyncIterator[Event]:
    """Print the events of a run as they arrive, and yield each one."""
    view = NestedRunView(out)
    async for event in cli.airlock.watch_run(run_id, from_sequence):
        if cli.as_json:
            print_json({"sequence": event.sequence, "type": event.type, "run_id": run_id, **event.payload})
        else:
            view.feed(event.type, dict(event.payload))
        yield event


class NestedRunView:
    """Prints a run, given every event in order; an event with `within` belongs to the subagent of that call."""

    def __init__(self, console: Console | None = None) -> None:
        self._root = self._last = RunView(console)
        self._nested: dict[str, RunView] = {}
        self._names: dict[str, str] = {}
        self._parents: dict[str, str] = {}

    def feed(self, event_type: str, payload: Mapping[str, Any]) -> None:
        within = str(payload.get("within") or "")
        if event_type == "tool_call_started":
            self._parents[str(payload.get("call_id"))] = within
        view = self._view(within) if within else self._root
        if event_type == "subagent_started":
            self._names[within] = one_line(payload.get("agent"), 80)
        if view is not self._last:
            self._last.interrupt()
            if within and self._last is not self._root and event_type != "subagent_started":
                view.console.print(Text(f"subagent {self._names.get(within, '?')}", style="dim"))
            self._last = view
        view.feed(event_type, payload)

    def _view(self, within: str) -> RunView:
        if within not in self._nested:
            outer = self._nested.get(self._parents.get(within, ""), self._root).console
            indented = SafeConsole(
                file=cast(Any, _IndentedFile(outer)),
                width=max(20, outer.width - len(_INDENT)),
                force_terminal=outer.is_terminal,
                color_system=cast(Any, outer.color_system),
            )
            self._nested[within] = RunView(indented)
            if len(self._nested) > _VIEWS_LIMIT:
                del self._nested[next(iter(self._nested))]
        return self._nested[within]


class _IndentedFile:
    """A text file whose every line begins with the indent."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._at_start = True

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            self._console.file.write(f"{_INDENT}{line}" if self._at_start else line)
            self._at_start = line.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self._console.file.flush()
