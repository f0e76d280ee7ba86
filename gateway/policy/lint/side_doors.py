"""Paths that one tool is kept from and another reaches: grep shows what read_file may not, and so does a command."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any

from gateway.policy.document import Rule
from gateway.policy.globs import compile_glob
from gateway.policy.globs_cover import sample_path
from gateway.policy.lint.findings import Finding, Linted, Severity
from gateway.policy.scoped_rule import ScopedRule

# Each takes a dozen judgements.
_LIMIT_RULES = 300
_Door = tuple[Severity, str, str, dict[str, Any]]


def side_doors(linted: Linted) -> Iterator[Finding]:
    """Yield the deny and ask rules about paths that another way leads around."""
    keeping = [placed for placed in linted.own if _keeps(placed.rule)]
    if len(keeping) > _LIMIT_RULES:
        yield linted.finding(
            "side-door",
            "note",
            keeping[_LIMIT_RULES],
            f"only the first {_LIMIT_RULES} rules that keep paths away were tried, and there are {len(keeping)}",
            "write several paths in one rule",
        )
    for placed in keeping[:_LIMIT_RULES]:
        rule = placed.rule
        for kept, doors in (("read_file", _reading), ("write_file", _writing)):
            if kept in rule.tools:
                yield from _open(linted, placed, kept, doors)


def _keeps(rule: Rule) -> bool:
    """Return whether a rule always keeps some paths from a tool."""
    always = rule.unless is None and rule.time is None and rule.when is None
    return rule.effect != "allow" and rule.paths is not None and always


def _open(linted: Linted, placed: ScopedRule, kept: str, doors: Any) -> Iterator[Finding]:
    for severity in ("warning", "note"):
        found: dict[str, str] = {}
        for glob in placed.rule.paths or ():
            path = sample_path(compile_glob(glob))
            if path is None:
                continue
            for worth, name, tool, arguments in doors(path):
                allowed = linted.allowed(tool, **arguments) if worth == severity and name not in found else None
                if allowed is not None:
                    found[name] = f"{name} ({_shown(tool, arguments)}, rule {allowed[0]})"
        if found:
            verb = "read" if kept == "read_file" else "written"
            shows = f"can be {verb}" if severity == "warning" else "is named"
            yield linted.finding(
                "side-door",
                severity,
                placed,
                f"{kept} is kept from {', '.join((placed.rule.paths or ())[:3])}, and it {shows} by"
                f" {', '.join(found.values())}",
                f"write tools: [{'read' if kept == 'read_file' else 'write'}] for all file tools; for commands, allow"
                " certain ones by argv",
            )


def _reading(path: str) -> Iterator[_Door]:
    above = posixpath.dirname(path)
    yield "warning", "grep", "grep", {"path": path, "pattern": "x"}
    yield "warning", "grep above it", "grep", {"path": above, "pattern": "x"}
    yield "warning", "cat", "execute", {"command": f"cat {path}"}
    yield "warning", "an interpreter", "execute", {"command": f"python3 -c \"print(open('{path}').read())\""}
    yield "warning", "an expansion", "execute", {"command": f"f={path}; cat $f"}
    yield "note", "glob", "glob", {"path": above, "pattern": "*"}
    yield "note", "ls", "ls", {"path": above}


def _writing(path: str) -> Iterator[_Door]:
    yield "warning", "edit_file", "edit_file", {"path": path, "old": "a", "new": "b"}
    yield "warning", "tee", "execute", {"command": f"tee {path}"}
    yield "warning", "a redirect", "execute", {"command": f"echo x > {path}"}
    yield "warning", "an interpreter", "execute", {"command": f"python3 -c \"open('{path}', 'w')\""}


def _shown(tool: str, arguments: dict[str, Any]) -> str:
    return f"`{arguments['command']}`" if tool == "execute" else f"{tool} {arguments['path']}"
