"""Approvals on a terminal: the call, the reason and the possible answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from gateway.cli.printable import Rows, one_line, short_arguments
from gateway.support.printable_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.client import Approval
    from gateway.policy.document import Rule

_SHOWN_CHARS = 4000
_STYLES = {"pending": "yellow", "approved": "green", "used": "green", "denied": "red", "expired": "red"}
_SAID = {"once": "allowed once", "run": "allowed for the run", "thread": "allowed for the thread", "deny": "denied"}
KEYS = {"y": "once", "r": "run", "t": "thread", "n": "deny", "e": "edit"}


def panel(approval: Approval, *, waiting: int = 0) -> RenderableType:
    """Return an approval: the call with the relevant parts highlighted, and who asks for it."""
    lines = [_call(approval), Text()]
    lines.append(Text.assemble(("asked by ", "dim"), one_line(approval.rule), ": ", one_line(approval.reason)))
    rest = {name: value for name, value in approval.arguments.items() if name not in ("command", "path")}
    if rest:
        shown = printable(json.dumps(rest, ensure_ascii=False, indent=1))
        cut = f"… {len(shown) - _SHOWN_CHARS:,} more characters: `airlock approvals show {approval.id}`"
        lines.append(Text(shown[:_SHOWN_CHARS] + ("" if len(shown) <= _SHOWN_CHARS else cut), style="dim"))
    where = f"thread {one_line(approval.thread)}"
    whose = f"run {approval.run_id}" if approval.run_id else "a service"
    lines.append(Text(f"{whose} · {where} · {remaining(approval)} · {approval.policy_version}", style="dim"))
    for line in lines:
        # The console does not wrap, and a panel would silently cut lines at its edge.
        line.no_wrap, line.overflow = False, "fold"
    title = Text(f"{approval.tool} · {approval.id}" + (f" · {waiting} more pending" if waiting else ""))
    return Panel(Group(*lines), title=title, title_align="left", border_style=_STYLES.get(approval.status, "dim"))


def choices(approval: Approval) -> Text:
    """Return the available keys on one line."""
    keys = [("y", "once")]
    if approval.proposed_rule and approval.run_id:
        keys.append(("r", "this run"))
    if approval.proposed_rule:
        keys.append(("t", "this thread"))
    keys += [("n", "no"), ("e", "edit"), ("s", "later"), ("q", "quit")]
    text = Text()
    for key, meaning in keys:
        text.append(f" {key} ", style="reverse bold").append(f" {meaning}   ")
    return text


def narrow(approval: Approval) -> Text:
    """Return what the answers for a run or thread would allow, in words if it is more than this call."""
    wider = one_line(", ".join(filter(None, map(_wider, _rules(approval.proposed_rule)))))
    said = Text("r and t would allow:" if approval.run_id else "t would allow:", style="dim")
    if wider:
        said.append(f" {wider}", style="not dim bold yellow")
    return said.append("\n").append(printable(approval.proposed_rule.rstrip()))


def _rules(text: str) -> Sequence[Rule]:
    import yaml
    from pydantic import TypeAdapter

    from gateway.policy.document import Rule

    try:
        rules = TypeAdapter(tuple[Rule, ...]).validate_json(json.dumps(yaml.safe_load(text)))
    except (ValueError, yaml.YAMLError):  # from a gateway with another policy language; the text itself is shown
        return ()
    return rules


def _wider(rule: Rule) -> str:
    """Return what a proposed rule allows besides this call; empty if nothing."""
    from gateway.policy.fields import WRITING_TOOLS

    if WRITING_TOOLS & set(rule.tools) and rule.paths is not None:
        return f"writing any content to {', '.join(rule.paths)}"
    if not rule.given():
        return f"any call of {', '.join(rule.tools)}, whatever its arguments"
    return ""


def listed(approvals: Sequence[Approval]) -> Rows:
    """Return approvals as rows."""
    rows = []
    for one in approvals:
        status, at = Text(one.status, style=_STYLES.get(one.status, "dim")), one.created_at.astimezone()
        thread, rule, call = one_line(one.thread, 24), one_line(one.rule, 30), one_line(_in_a_list(one), 60)
        rows.append((one.id, status, f"{at:%m-%d %H:%M}", thread, one.tool, rule, call))
    return Rows(("id", "status", "asked", "thread", "tool", "rule", "call"), rows)


def _in_a_list(approval: Approval) -> str:
    if approval.arguments_cut and not approval.arguments:
        return f"({approval.arguments_size_bytes:,} bytes of arguments; use `show`)"
    return short_arguments(approval.arguments)


def outcome(approval: Approval) -> Text:
    """Return the outcome on one line."""
    said = _SAID.get(approval.answer, "approved with other arguments" if approval.answer == "edit" else approval.status)
    by = f" by {one_line(approval.resolved_by)}" if approval.resolved_by else ""
    words = f": {one_line(approval.message)}" if approval.message else ""
    return Text(f"{approval.id} {said}{by}{words}", style=_STYLES.get(approval.status, "dim"))


def remaining(approval: Approval) -> str:
    """Return how much time is left."""
    left_s = (approval.expires_at - datetime.now(UTC)).total_seconds()
    if left_s <= 0:
        return "expired"
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if left_s >= unit_s:
            return f"expires in {left_s / unit_s:.0f} {unit}"
    return f"expires in {left_s:.0f} s"


def _call(approval: Approval) -> Text:
    """Return the command or path with the relevant parts highlighted."""
    subject = printable(approval.arguments.get("command") or approval.arguments.get("path") or approval.tool)
    text = Text(subject[:_SHOWN_CHARS], style="bold")
    if len(subject) > _SHOWN_CHARS:
        text.append(
            f"\n… {len(subject) - _SHOWN_CHARS:,} more characters: `airlock approvals show {approval.id}`", "red"
        )
    unseen = []
    for part in approval.asked:
        shown = printable(part)
        at = subject.find(shown)
        if at < 0:
            unseen.append(shown)
        else:
            text.stylize("bold black on yellow", at, at + len(shown))
    for part in unseen:
        text.append("\nabout: ", "dim").append(one_line(part), "bold black on yellow")
    return text


def show(console: Console, approval: Approval) -> None:
    """Print an approval with complete arguments."""
    console.print(panel(approval))
    console.print(printable(json.dumps(dict(approval.arguments), ensure_ascii=False, indent=2)))
    if approval.edited_arguments is not None:
        console.print("approved with:", style="dim")
        console.print(printable(json.dumps(dict(approval.edited_arguments), indent=2)))
    if approval.proposed_rule:
        console.print(narrow(approval))
    if approval.status != "pending":
        console.print(outcome(approval))
