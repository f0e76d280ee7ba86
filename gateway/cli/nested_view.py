"""Live view of a run and its subagents: one RunView each, indented under its parent's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.text import Text

from gateway.cli.printable import one_line
from gateway.cli.run_view import RunView
from gateway.cli.terminal import SafeConsole, out, print_json

if TYPE_CHECKING:
    from gateway.cli.command import GatewayCli
    from gateway.client import Event

_INDENT = "┆ "
_NARROWEST = 20
# Views kept at once; beyond that, later lines of the oldest subagent start a new view.
_VIEWS_LIMIT = 256


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
        self._console = console or SafeConsole()
        self._root = RunView(self._console)
        self._nested: dict[str, tuple[Console, RunView]] = {}
        self._names: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._last = self._root

    def feed(self, event_type: str, payload: Mapping[str, Any]) -> None:
        within = str(payload.get("within") or "")
        if event_type == "tool_call_started":
            self._parents[str(payload.get("call_id"))] = within
        view = self._view(within)[1] if within else self._root
        if event_type == "subagent_started":
            self._names[within] = one_line(payload.get("agent"), 80)
        if view is not self._last:
            self._last.interrupt()
            if within and self._last is not self._root and event_type != "subagent_started":
                self._nested[within][0].print(Text(f"subagent {self._names.get(within, '?')}", style="dim"))
            self._last = view
        view.feed(event_type, payload)

    def _view(self, within: str) -> tuple[Console, RunView]:
        if within not in self._nested:
            parent = self._parents.get(within, "")
            outer = self._nested[parent][0] if parent in self._nested else self._console
            console = _indented(outer)
            self._nested[within] = console, RunView(console)
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


def _indented(outer: Console) -> Console:
    return SafeConsole(
        file=cast(Any, _IndentedFile(outer)),
        width=max(_NARROWEST, outer.width - len(_INDENT)),
        force_terminal=outer.is_terminal,
        color_system=cast(Any, outer.color_system),
    )
