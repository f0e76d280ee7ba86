"""What of the rules on files is not what it seems where the sandbox's kernel enforces them."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.policy.file_rules import NOTHING, forbids, grants_of, is_below
from gateway.policy.lint.findings import Finding, Linted
from gateway.policy.scoped_rule import ScopedRule

_TOOLS = (("read_file", "read"), ("write_file", "change"))


def kernel_rules(linted: Linted) -> Iterator[Finding]:
    """Yield allow rules that grant commands nothing, and what keeps commands from more than a rule forbids."""
    if linted.loosest.file_rules is None:
        return
    for placed in linted.own:
        rule = placed.rule
        if rule.enforcement == "gateway" or not {tool for tool, _ in _TOOLS}.intersection(rule.tools):
            continue
        if rule.effect == "allow" and grants_of(rule) == NOTHING:
            what = (
                "it holds for the file tools only: the kernel grants directories and single files, without conditions"
            )
            mend = "name directories, as /workspace/src/**, or say so with enforcement: gateway"
            yield linted.finding("grants-nothing", "note", placed, what, mend)
    granted = {tool: _granted(linted, tool) for tool, _ in _TOOLS}
    for placed in linted.own:
        if placed.rule.effect != "allow" and placed.rule.given() - {"paths"}:
            for tool, verb in _TOOLS:
                if tool in placed.rule.tools and any(_covers(placed, top) for top in granted[tool]):
                    what = f"commands can {verb} nothing that it is about, as the kernel does not know its conditions"
                    mend = "name directories that commands need not use, or say enforcement: gateway"
                    yield linted.finding("forbidden-always", "note", placed, what, mend)
        for path in _inside(placed, granted["write_file"]):
            what = f"commands can create nothing beside {path}, as the kernel only grants what there is"
            mend = "have what commands may change in a directory of its own, which has nothing forbidden in it"
            yield linted.finding("forbidden-inside", "note", placed, what, mend)
    for placed in linted.own:
        if placed.rule.effect == "allow" and "write_file" in placed.rule.tools:
            for path in grants_of(placed.rule).trees:
                if not any(is_below(path, readable) for readable in granted["read_file"]):
                    what = f"commands may write below {path} and read nothing there"
                    yield linted.finding("unreadable", "note", placed, what, f"allow read_file of {path}/** too")


def _granted(linted: Linted, tool: str) -> list[str]:
    allowing = (placed.rule for placed in linted.rules if placed.rule.effect == "allow" and tool in placed.rule.tools)
    return [path for rule in allowing if rule.enforcement != "gateway" for path in grants_of(rule).trees]


def _covers(placed: ScopedRule, top: str) -> bool:
    return any(is_below(top, path) for path in forbids(placed.rule))


def _inside(placed: ScopedRule, writable: list[str]) -> Iterator[str]:
    """Yield what a rule forbids below something that commands may change."""
    if not {"read_file", "write_file"}.isdisjoint(placed.rule.tools):
        for path in forbids(placed.rule):
            if any(is_below(path, top) and path != top for top in writable):
                yield path
