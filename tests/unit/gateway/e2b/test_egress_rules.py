from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from gateway.config.model_settings import ModelSettings
from gateway.e2b.egress import egress_of
from gateway.e2b.egress_rules import rule_of
from gateway.e2b.requests import NetworkBody
from gateway.errors import InvalidArgument
from gateway.policy import Policy, PolicyDocument
from gateway.tenancy.tenants import Tenant

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


def _tenant() -> Tenant:
    rule = {"id": "one", "tools": ("connect",), "hosts": ("[2600::1]",), "effect": "allow", "reason": "For the test."}
    policy = Policy(PolicyDocument.model_validate({"version": 1, "rules": (rule,)}))
    return Tenant("t", policy, ModelSettings(), {})


@pytest.mark.parametrize("host", ["2600::1", "2600:0:0:0:0:0:0:1", "[2600::0001]"])
def test_an_address_that_the_policy_allows_is_accepted_in_each_spelling(host: str) -> None:
    assert egress_of(_tenant(), None, NetworkBody(allowOut=[host])) is None


@pytest.mark.parametrize("host", ["2600::1%x", "x" * 400, "no host"])
def test_what_is_allowed_has_to_be_a_host(host: str) -> None:
    with pytest.raises(InvalidArgument, match=r"network\.allowOut: "):
        egress_of(_tenant(), None, NetworkBody(allowOut=[host]))
