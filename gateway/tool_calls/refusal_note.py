"""What is said to a command that the kernel kept from a file: which rule probably did, by the end of its output.

The kernel says "Permission denied" and programs say of what, each in its own way. Nothing of the output is in the note.
"""

import re
from collections.abc import Iterable, Sequence

from gateway.policy import Policy
from gateway.policy.file_rules import READ, WRITE, forbids, named_programs
from gateway.policy.globs import ancestors
from gateway.policy.layers import scoped_in_both
from gateway.policy.shell_line import joined
from sandbox.file_rules import FileRules

# What is read of a command's output, which can be made to take long: its last lines, and some names in each.
_LIMIT_CHARS, _LIMIT_LINES, _LIMIT_NAMES = 4096, 20, 4
_REFUSED = re.compile(r"permission denied|EACCES|invalid cross-device link|unable to open", re.IGNORECASE)
_QUOTED = re.compile(r"['\"\u2018]([^'\"\u2018\u2019]{1,1000})['\"\u2019]")
_BEFORE = re.compile(
    r"(?<!\S)(\S{1,1000}): (?:[A-Z][a-z ]{0,40}: )?(?:permission denied|invalid cross-device link)", re.IGNORECASE
)


def refusal_note(policy: Policy, text: str, directory: str) -> str:
    """Return which rule probably refused a file to a command that ran in `directory`; "" where nothing was refused."""
    refused = [line for line in text[-_LIMIT_CHARS:].splitlines()[-_LIMIT_LINES:] if _REFUSED.search(line)]
    if not refused or policy.file_rules is None:
        return ""
    rules = scoped_in_both(policy.tenant_document, policy.operator_document)
    forbidden: list[tuple[str, dict[str, str]]] = []  # what rules forbid, each with the name of its first rule
    for tool, verb in ((READ, "read"), (WRITE, "write")):
        about = [placed for placed in reversed(rules) if tool in placed.rule.tools]
        forbidden.append((verb, {path: placed.name for placed in about for path in forbids(placed.rule)}))
    for line in refused:
        for name in (_QUOTED.findall(line) or _BEFORE.findall(line))[:_LIMIT_NAMES]:
            path = joined(directory, name)
            for verb, by_path in forbidden:
                found = next((above for one in ancestors(path) if (above := one or "/") in by_path), None)
                if found is not None:
                    return f"the policy lets commands {verb} nothing below {found}: rule {by_path[found]}"
    return f"the policy lets commands {granted_in_words(policy.file_rules)}"


def granted_in_words(granted: FileRules) -> str:
    """Return what commands may write, read and execute, after "commands may"."""
    said = [
        f"write {_below(granted.writable, granted.writable_files)}",
        f"read {_below(granted.readable, granted.readable_files)}",
    ]
    if named := named_programs(granted):
        said.append(f"execute only {_first(named)}")
    return f"{', '.join(said[:-1])}, and {said[-1]}"


def _below(trees: Sequence[str], files: Sequence[str]) -> str:
    said = [f"below {_first(trees)}"] if trees else []
    said += [_first(files)] if files else []
    return f"only {' and '.join(said)}" if said else "nothing"


def _first(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))[:10])
