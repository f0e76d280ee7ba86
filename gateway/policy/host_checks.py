"""Hosts that no rule may let pass: wildcards of more than one owner, and addresses that the operator has to name."""

from collections.abc import Iterable, Iterator

from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.fields import CONNECT
from gateway.policy.hosts import HostPattern, compile_host
from gateway.policy.scoped_rule import all_rules, scoped_rules
from gateway.policy.special_addresses import special
from gateway.policy.yaml_lines import Path


def wide_hosts(document: PolicyDocument) -> Iterator[tuple[Path, str]]:
    """Yield the hosts of allow and ask rules that are too wide. A deny rule may be as wide as it likes."""
    for path, rule in all_rules(document):
        for place, pattern in _let_pass(rule):
            if pattern.too_wide is not None:
                yield (*path, "hosts", place), pattern.too_wide


def private_hosts(tenant: PolicyDocument, operator: PolicyDocument | None) -> Iterator[tuple[Path, str]]:
    """Yield the addresses that rules of a tenant name and no connection reaches, as the operator names none of it."""
    above = [placed.rule for placed in scoped_rules(operator, "operator")] if operator is not None else []
    named = [pattern for rule in above if rule.effect == "allow" for _, pattern in _let_pass(rule)]
    for path, rule in all_rules(tenant):
        for place, pattern in _let_pass(rule):
            what = special(pattern.addresses) if pattern.addresses is not None else None
            if what is not None and not _names_some(named, pattern):
                fix = "have the operator's policy allow it, or leave it out"
                yield (*path, "hosts", place), f"{pattern.name} is {what}, which the operator has to name: {fix}"


def _let_pass(rule: Rule) -> Iterable[tuple[int, HostPattern]]:
    """Return the hosts that a rule in force lets pass or asks about, with their places."""
    passing = CONNECT in rule.tools and rule.effect != "deny" and rule.mode == "enforce"
    return enumerate(map(compile_host, rule.hosts or ())) if passing else ()


def _names_some(named: Iterable[HostPattern], pattern: HostPattern) -> bool:
    return any(
        one.addresses is not None
        and pattern.addresses is not None
        and one.addresses.overlaps(pattern.addresses)
        and (one.port == pattern.port or None in (one.port, pattern.port))
        for one in named
    )
