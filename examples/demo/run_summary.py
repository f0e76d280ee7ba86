"""Totals of a run, computed from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from gateway.cli.printable import kept_out_bytes, one_line, stop_line


@dataclass
class RunSummary:
    """Totals of a run. Feed it every event; `status` is None until the run has finished."""

    status: str | None = None
    stop: Mapping[str, Any] | None = None
    answer: str = ""
    steps: int = 0
    tools: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    evictions: list[tuple[str, int, int]] = field(default_factory=list)
    subagents: int = 0
    hook_failures: int = 0
    hooks_ms: float = 0.0
    model_ms: float = 0.0
    model_wait_ms: float = 0.0
    tools_ms: float = 0.0

    def feed(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Add one event."""
        if event_type == "tool_call_finished":
            self.tools[str(payload.get("name"))] += 1
            self.verdicts[str(payload.get("verdict")), str(payload.get("rule"))] += 1
            if evicted := payload.get("evicted"):
                spared = kept_out_bytes(evicted, payload.get("content"))
                self.evictions.append((str(evicted.get("path")), int(evicted.get("size_bytes") or 0), spared))
        elif event_type == "subagent_finished":
            self.subagents += 1
        elif event_type == "hook_failed":
            self.hook_failures += 1
        elif event_type == "run_finished":
            self.status, self.stop = str(payload.get("status")), payload.get("stop")
            self.answer, self.steps = str(payload.get("answer") or ""), int(payload.get("steps") or 0)
            self.hooks_ms = float(payload.get("hooks_ms") or 0)
            self.model_ms = float(payload.get("model_ms") or 0)
            self.model_wait_ms = float(payload.get("model_wait_ms") or 0)
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
        if self.subagents:
            table.add_row("subagents", Text(str(self.subagents)))
        if self.hook_failures:
            table.add_row("hook failures", Text(str(self.hook_failures), style="magenta"))
        times = [("model", self.model_ms), ("hooks", self.hooks_ms), ("sandbox", self.tools_ms)]
        if self.model_wait_ms:
            times.insert(1, ("waiting for the model", self.model_wait_ms))
        table.add_row("time", Text(", ".join(f"{name} {spent_ms / 1000:.3f} s" for name, spent_ms in times)))
        return table
