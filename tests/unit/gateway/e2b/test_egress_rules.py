from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from gateway.e2b.egress_rules import rule_of
from gateway.policy import Policy, PolicyDocument

_ALL = ["0.0.0.0/0"]
_HOSTS = ("example.com", "pypi.org", "1.1.1.1", "8.8.8.8", "2001:db8::1")


def _reached(deny: Sequence[str], allow: Sequence[str]) -> set[str]:
    wide = {"id": "wide", "tools": ("connect",), "hosts": _hosts(), "effect": "allow", "reason": "For the test."}
    document = PolicyDocument.model_validate({"version": 1, "rules": (wide,)})
    rules = (*document.rules, rule_of(deny, allow))
    policy = Policy(document.model_copy(update={"rules": rules}))
    return {one for one in _HOSTS if policy.judge("connect", {"host": one, "port": 443}).verdict == "allow"}


def _hosts() -> tuple[str, ...]:
    return tuple(f"[{one}]" if ":" in one else one for one in _HOSTS)


@pytest.mark.parametrize(
    "deny, allow, reached",
    [
        (_ALL, [], set()),
        (_ALL, ["Example.com", "8.8.8.8"], {"example.com", "8.8.8.8"}),
        (_ALL, ["8.8.0.0/16", "2001:db8::/32"], {"8.8.8.8", "2001:db8::1"}),
        (["8.8.8.8"], [], {"example.com", "pypi.org", "1.1.1.1", "2001:db8::1"}),
        (["8.8.8.0/24", "2001:db8::/32"], [], {"example.com", "pypi.org", "1.1.1.1"}),
        (["8.8.8.0/24"], ["8.8.8.8"], set(_HOSTS)),
    ],
)
def test_what_is_denied_is_not_reached_unless_it_is_allowed(
    deny: Sequence[str], allow: Sequence[str], reached: set[str]
) -> None:
    assert _reached(deny, allow) == reached


@pytest.mark.parametrize("host", ["no host", "*", "", "x" * 400])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        rule_of(_ALL, [host])
