"""The narrow rule that an approver may grant with an answer: exactly what was asked about, and nothing near it.

No rule says what is written: one about a file to be written allows any content, and one about an agent's own tool any
arguments. Its reason says so, for those who grant it.
"""

import hashlib
from collections.abc import Mapping, Sequence

import yaml

from gateway.policy.decision import OPAQUE, Decision
from gateway.policy.document import Rule
from gateway.policy.fields import WRITING_TOOLS, Placeholder
from gateway.policy.globs import escaped
from gateway.policy.parts import Part, cut
from gateway.policy.shell_line import START
from gateway.support.hosts import shown_endpoint

_LIMIT_WORDS = 31
"""A rule has at most 32 words in a row, and the last says that no more follow."""
_LIMIT_WORD_CHARS = 2000
_LIMIT_COMMANDS = 100
# Services also remove files and make directories by these tools: what may be written may not be removed for that.
_NO_OPERATION = "!has(args.operation)"


def narrow_rule(tool: str, arguments: Mapping[str, object], decision: Decision) -> Rule | None:
    """Return the rule that allows what a decision asks about: exactly these paths, these words, these hosts.

    None where one rule cannot say it: a word or a file is not known before the line runs, the whole line is
    opaque, or what is asked about is of several kinds.
    """
    if decision.verdict != "ask" or decision.rule == OPAQUE or "operation" in arguments:
        return None  # no rule can say that it is for a removal, or for a directory to be made, and for nothing else
    asked = set(decision.asked)
    parts = [part for part in cut(tool, arguments).parts if not asked.isdisjoint((part.shown, part.endpoint))]
    tools = {part.tool for part in parts}
    if not asked <= {name for part in parts for name in (part.shown, part.endpoint)} or len(tools) != 1:
        return None
    try:
        return _rule(parts, tools.pop(), decision.rule, requests=any(part.shown in asked for part in parts))
    except ValueError:  # a word that no rule can hold, as an empty one
        return None


def rule_as_yaml(rule: Rule) -> str:
    """Return a rule as it would stand in a policy file."""
    written = rule.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    return yaml.safe_dump([written], sort_keys=False, allow_unicode=True, width=100)


def _rule(parts: Sequence[Part], tool: str, asked_by: str, *, requests: bool) -> Rule | None:
    about: dict[str, object]
    if all(part.kind == "command" for part in parts):
        words = [_words(part) for part in parts]
        if None in words or len(words) > _LIMIT_COMMANDS:
            return None
        about = {"argv": tuple(dict.fromkeys(words))}
    elif all(part.kind == "path" and part.path is not None and not part.below for part in parts):
        about = {"paths": tuple(dict.fromkeys(escaped(str(part.path)) for part in parts))}
    elif all(part.kind == "host" and part.host is not None and part.port is not None for part in parts):
        about = {"hosts": tuple(dict.fromkeys(shown_endpoint(str(part.host), part.port) for part in parts))}
        if requests and parts[0].method is not None:  # of a connection there is one part
            if parts[0].url_path is None:
                return None
            about |= {"methods": (parts[0].method,), "url_paths": (escaped(parts[0].url_path),)}
    elif all(part.kind == "tool" for part in parts):
        about = {}
    else:
        return None
    name = hashlib.sha256(repr((tool, about)).encode("utf-8", "backslashreplace")).hexdigest()[:12]
    what = "exactly this" if about else "this tool with any arguments"
    if tool in WRITING_TOOLS:
        what = "writing any content here"
        about["when"] = _NO_OPERATION
    reason = f"an approver allowed {what}, which {asked_by} asks about"
    return Rule.model_validate({"id": f"grant-{name}", "tools": (tool,), "effect": "allow", "reason": reason, **about})


def _words(part: Part) -> tuple[str | tuple[str, ...] | Placeholder, ...] | None:
    """Return the words of a command, closed; None where one is not literal, or where it runs is not the usual place."""
    known = [word.text for word in part.words if word.kind == "literal" and len(word.text) <= _LIMIT_WORD_CHARS]
    if part.cwd != START or len(known) != len(part.words) or not 0 < len(known) <= _LIMIT_WORDS:
        return None
    # A list of one is that word and no other, where the word itself would be a pattern.
    return (*((text,) if text == "*" else text for text in known), Placeholder(end=True))
