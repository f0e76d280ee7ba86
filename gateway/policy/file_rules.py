"""What the kernel enforces of a policy in the sandbox: its rules on files, as directories with all below them.

Landlock grants directories and knows neither patterns nor conditions. So with `enforcement: kernel` commands get what
is allowed without conditions for whole directories; what is denied, or asked about, is forbidden to them however the
rule goes on. check_kernel() finds the rules that would be weaker for commands than for the file tools.
"""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import NamedTuple

from agent.tools.paths import WORKSPACE
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.fields import Placeholder
from gateway.policy.globs import compile_glob
from gateway.policy.layers import ScopedRule, scoped_rules
from gateway.policy.words import names
from gateway.policy.yaml_lines import Path
from sandbox.file_rules import FileRules

READ, WRITE = "read_file", "write_file"
_LISTS = {
    READ: ("readable", "readable_files", "unreadable"),
    WRITE: ("writable", "writable_files", "unwritable"),
}
# A line may use them beside what a rule allows: they run a program in their place, or do nothing.
_NEED_NO_RULE = names("""[ ash bash chronic dash echo env false flock ionice nice nohup printf pwd setsid sh stdbuf test
    time timeout true xargs""")
# Of both layers together the daemon takes twice as much (FILE_RULES_LIMIT_BYTES).
_LIMIT_PATHS_BYTES = 8_000


def file_rules_of(rules: Sequence[ScopedRule]) -> FileRules:
    """Return what commands may read, write and execute under the rules of both layers."""
    found: dict[str, dict[str, None]] = {name: {} for tool in (READ, WRITE) for name in _LISTS[tool]}
    for placed in rules:
        rule = placed.rule
        if rule.mode == "enforce" and rule.enforcement != "gateway":
            granted = grants_of(rule) if rule.effect == "allow" else NOTHING
            for tool in {READ, WRITE}.intersection(rule.tools):
                for name, paths in zip(_LISTS[tool], (*granted, forbids(rule)), strict=True):
                    found[name].update(dict.fromkeys(paths))
    return FileRules(**{name: tuple(paths) for name, paths in found.items()}, programs=programs_of(rules))


def programs_of(rules: Sequence[ScopedRule]) -> tuple[str, ...] | None:
    """Return the programs that commands may execute: those that rules name. None where a rule lets any line run."""
    found: set[str] = set()
    for placed in rules:
        rule = placed.rule
        if "execute" in rule.tools and rule.effect != "deny" and rule.mode == "enforce":
            named = _programs(rule)
            if named is None:
                return None
            found |= named
    return tuple(sorted(found | _NEED_NO_RULE)) if found else None


def named_programs(made: FileRules | None) -> list[str]:
    """Return the programs that rules name, of those that commands may execute."""
    return sorted(set(made.programs or ()) - _NEED_NO_RULE) if made is not None else []


def _programs(rule: Rule) -> set[str] | None:
    """Return the names and absolute paths that a rule lets run, None for any."""
    found: set[str] = set()
    for prefix in rule.argv or ():
        name = prefix[0]
        if isinstance(name, Placeholder) or name == "*":
            return None
        found.update((name,) if isinstance(name, str) else name)
    if rule.argv is None:
        return None
    return {posixpath.normpath(posixpath.join(WORKSPACE, name)) if "/" in name else name for name in found}


def enforcement_of(rule: Rule, made: FileRules | None) -> str:
    """Return what enforces a rule: "kernel", "gateway", or "reading" (of a command line).

    `made` is what the kernel enforces of the whole policy, None for nothing.
    """
    if _reads_line(rule):
        names_programs = rule.given() == {"argv"} and all(len(words) == 1 for words in rule.argv or ())
        if rule.effect == "deny" or rule.unless is not None or not names_programs:
            return "reading"
        return "kernel" if made is not None and made.programs is not None else "reading"
    if made is None or rule.enforcement == "gateway" or not {READ, WRITE}.intersection(rule.tools):
        return "gateway"
    return "gateway" if rule.effect == "allow" and grants_of(rule) == NOTHING else "kernel"


def check_kernel(document: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield what a document has that `enforcement: kernel` cannot enforce, with the fix."""
    if document.sandbox.runtime == "runsc":
        message = "gVisor has no Landlock, which enforcement: kernel needs; use runtime: runc, or enforcement: reading"
        yield ("sandbox", "runtime"), message
    rules = list(scoped_rules(document))
    made = file_rules_of(rules)
    size_bytes = sum(len(path.encode()) + 2 for paths in astuple(made) for path in paths or ())
    if size_bytes > _LIMIT_PATHS_BYTES:
        message = (
            f"the paths and programs of the rules take {size_bytes:,} bytes, and the sandbox takes "
            f"{_LIMIT_PATHS_BYTES:,}; name fewer directories, or set enforcement: gateway in rules that "
            "only have to apply to the file tools"
        )
        yield ("enforcement",), message
    for placed in rules:
        if placed.rule.mode == "enforce":
            yield from _weaker(placed)


def _weaker(placed: ScopedRule) -> Iterator[tuple[Path, str]]:
    """Yield where a rule would be weaker for commands than for the file tools."""
    rule = placed.rule
    if _reads_line(rule) and rule.enforcement != "reading":
        so, accept = f"so only reading the line can enforce rule {rule.id!r}", "set enforcement: reading"
        if rule.effect != "allow":
            what, fix = "the kernel does not see a command's arguments", "allow only what may run"
            yield (*placed.path, "effect"), f"{what}, {so}; {fix}, or {accept} in the rule"
        elif _programs(rule) is None:
            what, fix = "the kernel can check only the names of programs", "name the programs in argv"
            place = "argv" if rule.argv is not None else "when"
            yield (*placed.path, place), f"{what}, {so}; {fix}, or {accept} in the rule"
    if rule.effect != "allow" and rule.enforcement != "gateway" and {READ, WRITE}.intersection(rule.tools):
        for index, glob in enumerate(rule.paths or ()):
            if compile_glob(glob).shape == "pattern":
                message = (
                    "the kernel cannot enforce patterns; name directories, such as /workspace/secrets/**, or set "
                    f"enforcement: gateway in rule {rule.id!r}, so that it applies to the file tools only"
                )
                yield (*placed.path, "paths", index), message


def check_layers(tenant: PolicyDocument, operator: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield what keeps the kernel from enforcing both layers if only one asks for it, by places in the tenant's."""
    if tenant.enforcement == operator.enforcement:
        return  # each has been checked for itself
    if operator.enforcement == "kernel":
        yield from check_kernel(tenant)
        return
    for _, message in check_kernel(operator):
        yield ("enforcement",), f"the operator's policy does not fit enforcement: kernel: {message}"


def _reads_line(rule: Rule) -> bool:
    """Return whether a rule depends on what a command line says."""
    return "execute" in rule.tools and not rule.all_given.isdisjoint({"argv", "when"})


class Granted(NamedTuple):
    """What a rule grants to commands: directories with all below them, and single files."""

    trees: tuple[str, ...]
    files: tuple[str, ...]


NOTHING = Granted((), ())


def grants_of(rule: Rule) -> Granted:
    """Return what an allow rule about files grants to commands."""
    if rule.given() - {"paths"} or rule.unless is not None or rule.is_limited:
        return NOTHING
    if rule.paths is None:
        return Granted(("/",), ())
    globs = [compile_glob(path) for path in rule.paths]
    return Granted(
        tuple(glob.root or "/" for glob in globs if glob.shape == "tree"),
        tuple(glob.text for glob in globs if glob.shape == "path"),
    )


def forbids(rule: Rule) -> list[str]:
    """Return what a rule forbids to commands; of a pattern all that it could match."""
    if rule.effect == "allow" or rule.mode == "shadow" or rule.enforcement == "gateway":
        return []
    globs = map(compile_glob, rule.paths or ("/**",))
    return [(glob.text if glob.shape == "path" else glob.root) or "/" for glob in globs]


def is_below(path: str, directory: str) -> bool:
    """Return whether a normalised path is a directory or below it."""
    return directory in {path, "/"} or path.startswith(f"{directory}/")
