"""What the kernel enforces of a policy in the sandbox: its rules on files, as directories with all below them.

Landlock grants directories and knows neither patterns nor conditions. So with `enforcement: kernel` commands get what
is allowed without conditions for whole directories; what is denied, or asked about, is forbidden to them however the
rule goes on. check_kernel() finds the rules that would be weaker for commands than for the file tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.globs import compile_glob
from gateway.policy.scoped_rule import ScopedRule, scoped_rules
from gateway.policy.yaml_lines import Path
from sandbox.file_rules import FileRules

_READ, _WRITE = "read_file", "write_file"


def file_rules_of(rules: Iterable[ScopedRule]) -> FileRules:
    """Return what commands may read and write under the rules of both layers."""
    found: dict[tuple[str, bool], dict[str, None]] = {
        (tool, allowed): {} for tool in (_READ, _WRITE) for allowed in (True, False)
    }
    for placed in rules:
        rule = placed.rule
        if rule.mode == "shadow" or rule.enforcement == "gateway":
            continue
        for tool in {_READ, _WRITE}.intersection(rule.tools):
            paths = _granted(rule) if rule.effect == "allow" else _forbidden(rule)
            found[tool, rule.effect == "allow"].update(dict.fromkeys(paths))
    return FileRules(
        readable=tuple(found[_READ, True]),
        writable=tuple(found[_WRITE, True]),
        unreadable=tuple(found[_READ, False]),
        unwritable=tuple(found[_WRITE, False]),
    )


def enforcement_of(rule: Rule, *, kernel: bool) -> str:
    """Return what enforces a rule: "kernel", "gateway", or "reading" (of a command line)."""
    if "execute" in rule.tools:
        return "reading"
    if not kernel or rule.enforcement == "gateway" or not {_READ, _WRITE}.intersection(rule.tools):
        return "gateway"
    return "gateway" if rule.effect == "allow" and not _granted(rule) else "kernel"


def check_kernel(document: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield what a document has that `enforcement: kernel` cannot enforce, with the fix."""
    if document.sandbox.runtime == "runsc":
        message = "gVisor has no Landlock, which enforcement: kernel needs; use runtime: runc, or enforcement: reading"
        yield ("sandbox", "runtime"), message
    for placed in scoped_rules(document):
        rule = placed.rule
        if rule.mode == "shadow" or rule.effect == "allow":
            continue
        if "execute" in rule.tools and rule.argv is not None and rule.enforcement != "reading":
            message = (
                f"the kernel does not know the words of a command, so rule {rule.id!r} would hold by reading the line "
                "alone; allow only what may run, or accept it with enforcement: reading in the rule"
            )
            yield (*placed.path, "argv"), message
        if {_READ, _WRITE}.intersection(rule.tools) and rule.enforcement != "gateway":
            for index, glob in enumerate(rule.paths or ()):
                if compile_glob(glob).shape == "pattern":
                    message = (
                        f"the kernel knows no patterns; name directories, as /workspace/secrets/**, or have rule "
                        f"{rule.id!r} hold for the file tools only, with enforcement: gateway"
                    )
                    yield (*placed.path, "paths", index), message


def _granted(rule: Rule) -> list[str]:
    """Return the directories that an allow rule grants to commands with all below them."""
    if rule.given() - {"paths"} or rule.unless is not None or rule.rate is not None or rule.at_once is not None:
        return []
    if rule.paths is None:
        return ["/"]
    globs = map(compile_glob, rule.paths)
    return [glob.root or "/" for glob in globs if glob.shape == "tree"]


def _forbidden(rule: Rule) -> list[str]:
    """Return what a rule forbids to commands; of a pattern all that it could match."""
    globs = map(compile_glob, rule.paths or ("/**",))
    return [(glob.text if glob.shape == "path" else glob.root) or "/" for glob in globs]
