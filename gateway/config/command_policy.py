"""The command policy of one agent: which commands its execute tool may run, besides what the tenant's policy says.

    bash:
      allow: [[git, [status, diff, log]], [python3, -m, pytest]]
      deny: [[git, log, -p]]

Words are written as in the argv rules of a policy, and a line is judged by the same judge: each simple command in it
alone, wrappers such as env, timeout and sh -c taken off. A line that cannot be read for sure is refused wherever there
is a rule at all. The paths of redirects are the tenant's policy to judge; but where only some commands are allowed,
none of them may write a file by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from agent.capabilities.bash import CommandPolicy
from gateway.policy.decision import DEFAULT_DENY, Decision
from gateway.policy.document import WORDS_FORM, Literals, PolicyDocument, Rule, Section, Text, check_program_name
from gateway.policy.judge import Policy

_SHOWN_CHARS = 400


def _lists_of_words(prefixes: Any) -> Any:
    """Take lists as well as tuples, which strict types want, and say in one sentence what is no list of words."""
    if not _is_list(prefixes) or not prefixes:  # nothing after `allow:` is a slip, not the wish to allow everything
        raise ValueError(WORDS_FORM)
    return tuple(_words(prefix) for prefix in prefixes)


def _words(prefix: Any) -> tuple[str | tuple[str, ...], ...]:
    if not _is_list(prefix):
        raise ValueError(WORDS_FORM)
    words = tuple(tuple(word) if _is_list(word) else word for word in prefix)
    texts = [text for word in words for text in (word if isinstance(word, tuple) else (word,))]
    if not all(words) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(WORDS_FORM)
    for program in (words[0],) if isinstance(words[0], str) else words[0]:
        check_program_name(program)
    return words


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


Prefix = Annotated[tuple[Text | Literals, ...], Field(min_length=1, max_length=32)]
Prefixes = Annotated[tuple[Prefix, ...], Field(max_length=1000)]


class CommandRules(Section):
    """Commands by their first words. With `allow` nothing else runs; what `deny` names never does."""

    allow: Annotated[Prefixes | None, BeforeValidator(_lists_of_words)] = None
    deny: Annotated[Prefixes | None, BeforeValidator(_lists_of_words)] = None


def command_policy(rules: CommandRules) -> CommandPolicy | None:
    """Return what bash(command_policy=...) takes; None where no rule is given."""
    if rules.allow is None and rules.deny is None:
        return None
    document = PolicyDocument(version=1, opaque="deny", rules=tuple(_policy_rules(rules)))
    # Which files and hosts the allowed programs may use is for the tenant's policy to say.
    policy = Policy(document, judges_effects=False)

    def judge(command: str) -> str | None:
        decision = policy.judge("execute", {"command": command})
        return None if decision.verdict == "allow" else _reason(decision, rules)

    return judge


def _policy_rules(rules: CommandRules) -> Iterator[Rule]:
    """Yield the rules as those of a policy."""
    if rules.deny is not None:
        yield Rule(id="deny", tools=("execute",), effect="deny", reason="denied to this agent", argv=rules.deny)
    if rules.allow is None:
        yield Rule(id="allow", tools=("execute",), effect="allow", reason="not denied to this agent")
        return
    yield Rule(id="allow", tools=("execute",), effect="allow", reason="allowed to this agent", argv=rules.allow)
    # A program that may run could read the file by itself; writing one is more than its name says.
    yield Rule(id="read", tools=("read_file",), effect="allow", reason="read by an allowed command", paths=("/**",))


def _reason(decision: Decision, rules: CommandRules) -> str:
    """Say what is refused, and what would not be."""
    denied = next((match.part for match in decision.trace if match.effect == "deny"), None)
    if denied is not None:
        return f"this agent may not run {denied!r}"
    if decision.rule != DEFAULT_DENY:
        return decision.reason
    refused = decision.reason.partition(": ")[2]
    if refused.startswith("> "):  # no program has such a name
        return f"a command of this agent may not write a file by a redirect ({refused}); use a pipe, or write_file"
    allowed = ", ".join(_spelled(prefix) for prefix in rules.allow or ())
    shown = allowed if len(allowed) <= _SHOWN_CHARS else f"{allowed[:_SHOWN_CHARS]}..."
    return f"this agent may not run {refused!r}; what it may run starts with: {shown}"


def _spelled(prefix: tuple[str | tuple[str, ...], ...]) -> str:
    return " ".join(word if isinstance(word, str) else "|".join(word) for word in prefix)
