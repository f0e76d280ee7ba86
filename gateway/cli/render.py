"""A run as a person follows it: RunView prints its events as they come, RunSummary adds them up.

Everything in an event was said by a model or by a sandbox, so nothing of it reaches the terminal as it is: control and
direction characters become visible signs, and rich never reads it as markup.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

HEAD_LINES = 4
TAIL_LINES = 3
LINE_CHARS = 400
ARGUMENT_CHARS = 160

# The arguments that say what a call is about, without their names.
_SUBJECTS = ("command", "path")
_PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: object) -> str:
    """Return text that moves no cursor, hides nothing and can always be encoded; tabs and newlines stay."""
    pictured = str(text).replace("\r\n", "\n").translate(_PICTURES)
    return "".join(
        character if character in "\t\n" or unicodedata.category(character) not in _UNPRINTABLE else "\ufffd"
        for character in pictured
    )


def one_line(text: object, limit_chars: int = LINE_CHARS) -> str:
    """Return printable text on one line, cut with a sign when it is longer than the limit."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit_chars else f"{line[: limit_chars - 1]}…"


def short_arguments(arguments: Mapping[str, Any] | None) -> str:
    """Return the arguments of a call as a person would say them: the command or the path first, the rest by name."""
    if arguments is None:
        return "(arguments that are no JSON object)"
    rest = dict(arguments)
    first = [one_line(rest.pop(key), ARGUMENT_CHARS) for key in _SUBJECTS if key in rest]
    shown = [f"{one_line(key, 40)}={_short_value(value)}" for key, value in rest.items()]
    return " ".join([*first, *shown])


def _short_value(value: object) -> str:
    text = one_line(json.dumps(value, ensure_ascii=False), ARGUMENT_CHARS)
    return text if len(text) <= 60 else f"{text[:59]}…"


@dataclass
class _Call:
    """A tool call on the screen: what is said of it first and when it comes back, and the live lines shown so far."""

    name: str
    arguments: str
    subject: str
    shown_lines: int = 0
    partial_line: str = ""
    refused: bool = False


class _Prose:
    """Text that comes in pieces, broken between words at the console's width."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._word = ""
        self._column = 0
        self.empty = True

    def add(self, text: str) -> None:
        """Print all but the last word, which may go on in the next piece."""
        self.empty = False
        *words, self._word = re.split(r"(?<=\s)", self._word + printable(text).expandtabs(4))
        if len(self._word) > self._console.width:
            words, self._word = [*words, self._word], ""
        self._print("".join(self._broken(word) for word in words))

    def end(self) -> None:
        """Print the last word and end the line, if one is begun."""
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
        self._console.print(Text(text), end="", soft_wrap=True, highlight=False)


class RunView:
    """Prints a run. Feed it every event in order; it keeps what it needs and raises for no payload it does not know."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._calls: dict[str, _Call] = {}
        self._open: set[str] = set()
        self._headed: str | None = None
        self._prose = _Prose(self._console)

    def feed(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Print one event; a type that is not known prints nothing."""
        show = getattr(self, f"_on_{event_type}", None)
        if show is not None:
            if event_type != "model_delta":
                self._prose.end()
            show(payload)

    def _print(self, text: str, style: str = "", indent: int = 0, *, wrap: bool = False) -> None:
        """Print lines; `wrap` breaks them between words, otherwise that is left to the terminal."""
        line = Text(text, style=style)
        for part in line.wrap(self._console, self._console.width - indent) if wrap else (line,):
            self._console.print(Text(" " * indent).append_text(part), soft_wrap=True, highlight=False)

    # --- the run, its steps and the model ---

    def _on_run_started(self, payload: Mapping[str, Any]) -> None:
        self._print(f"run of agent {one_line(payload.get('agent'))} in thread {one_line(payload.get('thread'))}", "dim")
        self._print(printable(payload.get("task", "")), "bold", wrap=True)

    def _on_step_started(self, payload: Mapping[str, Any]) -> None:
        self._prose = _Prose(self._console)
        self._console.print(Rule(Text(f"step {one_line(payload.get('step'))}", style="dim"), style="dim", align="left"))

    def _on_model_delta(self, payload: Mapping[str, Any]) -> None:
        self._prose.add(str(payload.get("text", "")))

    def _on_model_finished(self, payload: Mapping[str, Any]) -> None:
        """Show the text of an endpoint that does not stream; it comes here first."""
        if self._prose.empty:
            self._prose.add(str(payload.get("text") or ""))
            self._prose.end()
        for call in payload.get("tool_calls") or ():
            self._know(call.get("id"), call.get("name"), call.get("arguments"))

    def _on_model_failed(self, payload: Mapping[str, Any]) -> None:
        self._print(f"✗ the model failed: {one_line(payload.get('error'))}", "red", wrap=True)

    # --- tool calls ---

    def _know(self, call_id: object, name: object, arguments: Mapping[str, Any] | None) -> _Call:
        subject = {key: value for key, value in (arguments or {}).items() if key in _SUBJECTS}
        call = _Call(one_line(name, 80), short_arguments(arguments), short_arguments(subject))
        return self._calls.setdefault(str(call_id), call)

    def _head(self, payload: Mapping[str, Any], *, back: bool = False) -> _Call:
        """Say which call the next lines are about, unless the last lines were about it too."""
        call_id = str(payload.get("call_id"))
        call = self._calls.get(call_id) or self._know(call_id, payload.get("name", "?"), payload.get("arguments") or {})
        if self._headed != call_id:
            self._headed = call_id
            sign, arguments = ("←", call.subject) if back else ("→", call.arguments)
            line = Text.assemble((f"{sign} ", "cyan"), (call.name, "bold cyan"), " ", arguments)
            line.rstrip()
            self._console.print(line, soft_wrap=True, highlight=False)
        return call

    def _on_tool_call_started(self, payload: Mapping[str, Any]) -> None:
        self._know(payload.get("call_id"), payload.get("name"), payload.get("arguments"))
        self._head(payload)
        self._open.add(str(payload.get("call_id")))

    def _on_hook_verdict(self, payload: Mapping[str, Any]) -> None:
        if payload.get("verdict") == "deny":
            self._refuse(payload)
        elif payload.get("verdict") == "ask":
            self._head(payload)
            self._print(f"? waits for an approval, rule {one_line(payload.get('rule'))}", "yellow", 2)

    def _refuse(self, payload: Mapping[str, Any]) -> None:
        call = self._head(payload)
        if not call.refused:
            call.refused = True
            blocked = f"✗ blocked by rule {one_line(payload.get('rule'))}: {one_line(payload.get('reason'))}"
            self._print(blocked, "red", 2, wrap=True)

    def _on_tool_output(self, payload: Mapping[str, Any]) -> None:
        """Show the first lines live, as long as no other call runs that they could be taken for."""
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
        """Show a line of output, cut at the console's width if nothing else is said: the events have the whole."""
        self._print(f"│ {output_line(line, limit_chars or self._console.width - 4)}", "dim", 2)

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
        """Show what the live output left out: the rest of the head, how much is left out, and the tail."""
        content, evicted = str(payload.get("content") or ""), payload.get("evicted")
        said = f"{content}\n{payload.get('note') or ''}"
        lines = [line for line in said.split("\n") if line.strip()]
        # A result of a line or two, such as of grep, is worth its whole width.
        limit_chars = LINE_CHARS if len(lines) <= 2 else 0
        for line in lines[call.shown_lines : HEAD_LINES]:
            self._output_line(line, limit_chars)
        rest = lines[max(call.shown_lines, HEAD_LINES) :]
        if evicted:
            for line in _eviction_lines(evicted, content):
                self._print(line, "yellow", 2)
        elif len(rest) > TAIL_LINES + 1:
            self._print(f"│ … {len(rest) - TAIL_LINES:,} more lines", "dim", 2)
        for line in rest if len(rest) == TAIL_LINES + 1 and not evicted else rest[-TAIL_LINES:]:
            self._output_line(line)

    # --- what went wrong, and the end ---

    def _on_hook_failed(self, payload: Mapping[str, Any]) -> None:
        where = f"hook {payload.get('hook')} failed at {payload.get('point')} ({payload.get('on_failure')})"
        self._print(f"! {one_line(where)}: {one_line(payload.get('error'))}", "magenta", wrap=True)

    def _on_run_finished(self, payload: Mapping[str, Any]) -> None:
        self._console.print(Rule(style="dim"))
        completed = payload.get("status") == "completed"
        self._print(
            f"■ {one_line(payload.get('status'))}: {stop_line(payload.get('stop'))}",
            "bold green" if completed else "bold red",
            wrap=True,
        )


def output_line(line: str, limit_chars: int) -> str:
    """Return one line of output with its spaces kept, printable, and cut with a sign when it is longer."""
    shown = printable(line[:LINE_CHARS]).expandtabs(4)
    return shown if len(shown) <= limit_chars else f"{shown[: limit_chars - 1]}…"


def stop_line(stop: Mapping[str, Any] | None) -> str:
    """Return why a run stopped: the reason, and whose it is."""
    if not stop:
        return "nothing said why"
    return one_line(f"{stop.get('reason')} (hook {stop.get('hook')}, rule {stop.get('rule')})")


def kept_out_bytes(evicted: Mapping[str, Any], content: object) -> int:
    """Return how much of an evicted result the model was spared."""
    shown_bytes = len(str(content or "").encode("utf-8", "replace"))
    return max(0, int(evicted.get("size_bytes") or 0) - shown_bytes)


def _eviction_lines(evicted: Mapping[str, Any], content: object) -> tuple[str, str]:
    size = f"{int(evicted.get('size_bytes') or 0):,} bytes, {int(evicted.get('lines') or 0):,} lines"
    incomplete = " (incomplete)" if evicted.get("incomplete") else ""
    kept_out = f"{kept_out_bytes(evicted, content):,} bytes kept out of the context"
    return f"⇣ evicted to {one_line(evicted.get('path'))}{incomplete}", f"  {size}; {kept_out}"


@dataclass
class RunSummary:
    """The numbers of a run. Feed it the same events; `status` is None until the run has finished."""

    status: str | None = None
    stop: Mapping[str, Any] | None = None
    answer: str = ""
    steps: int = 0
    tools: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    evictions: list[tuple[str, int, int]] = field(default_factory=list)
    hook_failures: int = 0
    hooks_ms: float = 0.0
    model_ms: float = 0.0
    tools_ms: float = 0.0

    def feed(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Add one event."""
        if event_type == "tool_call_finished":
            self.tools[str(payload.get("name"))] += 1
            self.verdicts[str(payload.get("verdict")), str(payload.get("rule"))] += 1
            if evicted := payload.get("evicted"):
                spared = kept_out_bytes(evicted, payload.get("content"))
                self.evictions.append((str(evicted.get("path")), int(evicted.get("size_bytes") or 0), spared))
        elif event_type == "hook_failed":
            self.hook_failures += 1
        elif event_type == "run_finished":
            self.status, self.stop = str(payload.get("status")), payload.get("stop")
            self.answer, self.steps = str(payload.get("answer") or ""), int(payload.get("steps") or 0)
            self.hooks_ms = float(payload.get("hooks_ms") or 0)
            self.model_ms = float(payload.get("model_ms") or 0)
            self.tools_ms = float(payload.get("tools_ms") or 0)

    def table(self) -> Table:
        """Return the summary for a rich console."""
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row("stopped", Text(stop_line(self.stop)))
        tools = ", ".join(f"{one_line(name, 80)} {count}" for name, count in self.tools.most_common())
        table.add_row("tool calls", Text(f"{self.tools.total()} in {self.steps} steps: {tools or 'none'}"))
        for position, ((verdict, rule), count) in enumerate(sorted(self.verdicts.items())):
            style = {"deny": "red", "ask": "yellow"}.get(verdict, "green")
            text = Text.assemble((f"{one_line(verdict):<5} ", style), f"{count:>3}  rule {one_line(rule)}")
            table.add_row("" if position else "verdicts", text)
        spared = sum(eviction[2] for eviction in self.evictions)
        table.add_row("evictions", Text(f"{len(self.evictions)}: {spared:,} bytes kept out of the context"))
        for path, size_bytes, _ in self.evictions:
            table.add_row("", Text(f"{size_bytes:,} bytes in {one_line(path)}", style="yellow"))
        if self.hook_failures:
            table.add_row("hook failures", Text(str(self.hook_failures), style="magenta"))
        times = (("model", self.model_ms), ("hooks", self.hooks_ms), ("sandbox", self.tools_ms))
        table.add_row("time", Text(", ".join(f"{name} {spent_ms / 1000:.3f} s" for name, spent_ms in times)))
        return table
