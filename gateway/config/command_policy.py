"""The command policy of one agent: which commands its execute tool may run, in addition to the tenant's policy.

    bash:
      allow: [[git, [status, diff, log]], [python3, -m, pytest]]
      deny: [[git, log, -p]]

Words are written as in the argv rules of a policy and judged the same way: each simple command alone, without wrappers
such as env, timeout and sh -c. With any rule, a line that cannot be parsed reliably is refused. The tenant's policy
judges the paths of redirects; but with an `allow` list no command may write a file by one.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from agent.capabilities.bash import CommandPolicy
from gateway.policy.decision import DEFAULT_DENY, Decision
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.fields import WORDS_FORM, Literals, Section, Text, check_program_name
from gateway.policy.judge import Policy

_SHOWN_CHARS = 400


def _lists_of_words(prefixes: Any) -> Any:
    """Convert lists to tuples for strict types, with one error message for anything that is not a list of words."""
    if not _is_list(prefixes) or not prefixes:  # an empty `allow:` is a mistake, not a wish to allow everything
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
    """Commands by their first words. With `allow` nothing else runs; commands in `deny` never run."""

    allow: Annotated[Prefixes | None, BeforeValidator(_lists_of_words)] = None
    deny: Annotated[Prefixes | None, BeforeValidator(_lists_of_words)] = None


def command_policy(rules: CommandRules) -> CommandPolicy | None:
    """Return the argument of bash(command_policy=...); None without rules."""
    if rules.allow is None and rules.deny is None:
        return None
    document = PolicyDocument(version=1, opaque="deny", rules=tuple(_policy_rules(rules)))
    # The tenant's policy decides which files the allowed programs may use, and which hosts.
    policy = Policy(document, judges_effects=False)

    def judge(command: str) -> str | None:
        decision = policy.judge("execute", {"command": command})
        return None if decision.verdict == "allow" else _reason(decision, rules)

    return judge


def _policy_rules(rules: CommandRules) -> Iterator[Rule]:
    if rules.deny is not None:
        yield Rule(id="deny", tools=("execute",), effect="deny", reason="denied to this agent", argv=rules.deny)
    if rules.allow is None:
        yield Rule(id="allow", tools=("execute",), effect="allow", reason="not denied to this agent")
        return
    yield Rule(id="allow", tools=("execute",), effect="allow", reason="allowed to this agent", argv=rules.allow)
    # An allowed program could read the file itself; writing one is more than its name suggests.
    yield Rule(id="read", tools=("read_file",), effect="allow", reason="read by an allowed command", paths=("/**",))


def _reason(decision: Decision, rules: CommandRules) -> str:
    denied = next((match.part for match in decision.trace if match.effect == "deny"), None)
    if denied is not None:
        return f"this agent may not run {denied!r}"
    if decision.rule != DEFAULT_DENY:
        return decision.reason
    refused = decision.reason.partition(": ")[2].partition(". It allows ")[0]
    if refused.startswith("> "):  # a redirect, not a program
        return f"this agent may not write a file by a redirect ({refused}); use a pipe, or write_file"
    allowed = ", ".join(_spelled(prefix) for prefix in rules.allow or ())
    shown = allowed if len(allowed) <= _SHOWN_CHARS else f"{allowed[:_SHOWN_CHARS]}..."
    return f"this agent may not run {refused!r}; it may run commands that start with: {shown}"


def _spelled(prefix: tuple[str | tuple[str, ...], ...]) -> str:
    return " ".join(word if isinstance(word, str) else "|".join(word) for word in prefix)
