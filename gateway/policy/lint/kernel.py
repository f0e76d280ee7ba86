"""Where rules on files and programs bind commands less than they seem to, and how the kernel can enforce them."""

import posixpath
from collections.abc import Iterator, Sequence

from agent.tools.paths import WORKSPACE
from gateway.policy.cover import alternatives
from gateway.policy.file_rules import NOTHING, file_rules_of, forbids, grants_of, is_below
from gateway.policy.layers import ScopedRule
from gateway.policy.lint.findings import Finding, Linted

_TOOLS = (("read_file", "read"), ("write_file", "change"))
# What programs read by themselves, and can make them run others.
_CONFIGURED = {
    "git": ".git/config",
    "pytest": "conftest.py",
    **dict.fromkeys(("make", "gmake"), "Makefile"),
    **dict.fromkeys(("npm", "pnpm", "yarn"), "package.json"),
}


def kernel_rules(linted: Linted) -> Iterator[Finding]:
    """Yield allow rules that grant commands nothing, and what keeps commands from more than a rule forbids."""
    if linted.loosest.file_rules is None:
        yield from _by_reading(linted)
        return
    made = file_rules_of(linted.rules)
    granted = {"read_file": made.readable, "write_file": made.writable}
    for placed in linted.own:
        if placed.rule.enforcement != "gateway" and not granted.keys().isdisjoint(placed.rule.tools):
            if placed.rule.effect == "allow":
                yield from _allowed(linted, placed, granted["read_file"])
            else:
                yield from _forbidden(linted, placed, granted)
    yield from _planted(linted, granted["write_file"])


def _allowed(linted: Linted, placed: ScopedRule, readable: Sequence[str]) -> Iterator[Finding]:
    grants = grants_of(placed.rule)
    if grants == NOTHING:
        what = "it holds for the file tools only: the kernel grants directories and single files, without conditions"
        fix = "name directories, as /workspace/src/**, or say so with enforcement: gateway"
        yield linted.finding("grants-nothing", placed, what, fix)
    for path in grants.trees if "write_file" in placed.rule.tools else ():
        if not any(is_below(path, top) for top in readable):
            what = f"commands may write below {path} and read nothing there"
            yield linted.finding("unreadable", placed, what, f"allow read_file of {path}/** too")


def _forbidden(linted: Linted, placed: ScopedRule, granted: dict[str, tuple[str, ...]]) -> Iterator[Finding]:
    forbidden = forbids(placed.rule)
    for tool, verb in _TOOLS if placed.rule.given() - {"paths"} else ():
        if tool in placed.rule.tools and any(is_below(top, path) for top in granted[tool] for path in forbidden):
            what = f"commands can {verb} no file that the rule is about: the kernel cannot check its conditions"
            fix = "name directories that commands need not use, or say enforcement: gateway"
            yield linted.finding("forbidden-always", placed, what, fix)
    for path in forbidden:
        if any(is_below(path, top) and path != top for top in granted["write_file"]):
            what = f"commands cannot create files beside {path}: next to it, the kernel grants only existing files"
            above = posixpath.dirname(path)
            where = f"in the directories that commands change, such as {above}/src/**"
            fix = f"allow writing {where}, instead of in all of {above}"
            yield linted.finding("forbidden-inside", placed, what, fix)


def _by_reading(linted: Linted) -> Iterator[Finding]:
    """Yield the first rule that keeps commands with certain words from files, which only the kernel does for sure."""
    if not any(placed.rule.effect == "allow" and placed.rule.argv for placed in linted.rules):
        return
    for placed in linted.own:
        if placed.rule.effect == "deny" and placed.rule.paths and "read_file" in placed.rule.tools:
            what = "only the reading of command lines keeps commands from these files, which is not reliable"
            fix = "write enforcement: kernel at the top of the policy, and name directories in place of patterns"
            yield linted.finding("by-reading", placed, what, fix)
            return


def _planted(linted: Linted, writable: Sequence[str]) -> Iterator[Finding]:
    """Yield the rules that allow some uses of a program that reads what to run from a file commands may change."""
    for placed in linted.own:
        for name, *rest in placed.rule.argv or () if placed.rule.effect == "allow" else ():
            for program in alternatives(name):
                path = posixpath.join(WORKSPACE, _CONFIGURED.get(program, ""))
                if rest and program in _CONFIGURED and any(is_below(path, top) for top in writable):
                    what = f"commands may change {path}, and so control which of the named programs {program} runs"
                    fix = f"allow writing in directories without it, such as {WORKSPACE}/src/**, or accept it"
                    yield linted.finding("planted", placed, what, fix)
                    return
