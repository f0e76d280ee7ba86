"""Paths that one tool is kept from and another reaches: grep shows what read_file may not, and so does a command."""

import posixpath
from collections.abc import Iterator
from typing import Any

from gateway.policy.document import Rule
from gateway.policy.globs import compile_glob
from gateway.policy.globs_cover import sample_path
from gateway.policy.lint.findings import Finding, Linted

_Door = tuple[str, str, dict[str, Any]]


def side_doors(linted: Linted) -> Iterator[Finding]:
    """Yield the deny and ask rules about paths that another way leads around."""
    for placed in linted.own:
        for kept, kind, doors in (("read_file", "read", _reading), ("write_file", "write", _writing)):
            if kept not in placed.rule.tools or not _keeps(placed.rule):
                continue
            found: dict[str, str] = {}
            for glob in placed.rule.paths or ():
                path = sample_path(compile_glob(glob))
                for name, tool, arguments in doors(path) if path is not None else ():
                    if tool == "execute" and linted.loosest.file_rules is not None:
                        continue  # the kernel keeps commands from what rules forbid, whatever their lines say
                    allowed = linted.allowed(tool, **arguments)
                    if allowed is not None:
                        found.setdefault(name, f"{name} ({_shown(tool, arguments)}, rule {allowed[0]})")
            if found:
                paths = ", ".join((placed.rule.paths or ())[:3])
                what = f"{kept} is kept from {paths}, and it can be reached by {', '.join(found.values())}"
                fix = f"write tools: [{kind}] for all file tools; for commands, allow certain ones by argv"
                yield linted.finding("side-door", placed, what, fix)


def _keeps(rule: Rule) -> bool:
    """Return whether a rule always keeps some paths from a tool."""
    always = rule.unless is None and rule.time is None and rule.when is None
    return rule.effect != "allow" and rule.paths is not None and always


def _reading(path: str) -> Iterator[_Door]:
    yield "grep", "grep", {"path": path, "pattern": "x"}
    yield "grep above it", "grep", {"path": posixpath.dirname(path), "pattern": "x"}
    yield "an interpreter", "execute", {"command": f"python3 -c \"print(open('{path}').read())\""}
    yield "an expansion", "execute", {"command": f"f={path}; cat $f"}


def _writing(path: str) -> Iterator[_Door]:
    yield "edit_file", "edit_file", {"path": path, "old": "a", "new": "b"}
    yield "a redirect", "execute", {"command": f"echo x > {path}"}
    yield "an interpreter", "execute", {"command": f"python3 -c \"open('{path}', 'w')\""}


def _shown(tool: str, arguments: dict[str, Any]) -> str:
    return f"`{arguments['command']}`" if tool == "execute" else f"{tool} {arguments['path']}"
