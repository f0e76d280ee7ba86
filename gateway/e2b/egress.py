"""E2B's network rules of a sandbox, as requests have them: what denyOut names is denied, except what allowOut does.

They deny, and the policy decides on everything that they do not. So what a caller wants to be allowed has to be allowed
by the policy already.
"""

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from gateway.e2b.egress_rules import ALL, rule_of
from gateway.e2b.errors import NoCounterpart
from gateway.e2b.requests import NetworkBody
from gateway.errors import InvalidArgument
from gateway.support.hosts import canonical_host
from gateway.tenancy.tenants import Tenant

_WHY = "the tenant's policy decides what sandboxes connect to (docs/network.md)"
_PORTS = "ports of a sandbox are reached by `airlock sandbox forward`"


def egress_of(tenant: Tenant, internet: bool | None, network: NetworkBody | None) -> Mapping[str, Sequence[str]] | None:
    """Return the rules that a request asks for, to be stored; None for none.

    Raises NoCounterpart for what cannot be done, and InvalidArgument. That a sandbox may connect, and may be connected
    to, is what many SDKs say by default, so it asks for nothing.
    """
    asked = network or NetworkBody()
    for name, value, why in (
        ("dnsServers", asked.dns_servers, "a sandbox resolves no names, the gateway does"),
        ("egressProxy", asked.egress_proxy, _WHY),
        ("httpsPorts", asked.https_ports, _PORTS),
        ("maskRequestHost", asked.mask_request_host, _PORTS),
        ("rules", asked.rules, "headers are added by `credentials` of the configuration (docs/network.md)"),
    ):
        if value:
            raise NoCounterpart(f"network.{name}: {why}")
    internet = asked.allow_internet_access if internet is None else internet
    deny = [] if internet is not False else sorted(ALL)
    deny += asked.deny_out
    for host in asked.allow_out:
        _check_allowed(tenant, host)
    if not deny or not ALL.isdisjoint(asked.allow_out):  # what is allowed comes first
        return None
    found = {"deny": deny, "allow": asked.allow_out}
    try:
        rule_of(**found)
    except ValidationError as error:
        raise InvalidArgument(f"network: {error.errors()[0]['msg']}") from None
    return found


def _check_allowed(tenant: Tenant, host: str) -> None:
    """Raise NoCounterpart for a host that the policy lets no sandbox connect to, InvalidArgument for what is none."""
    policy = tenant.policy
    if not policy.connects:
        raise NoCounterpart(f"network.allowOut: {host[:256]}: the policy lets no sandbox connect; {_WHY}")
    if "/" in host or host.startswith("*"):
        return  # of many hosts the policy may allow some
    try:
        allowed = policy.connects_to(canonical_host(host))
    except ValueError as error:
        raise InvalidArgument(f"network.allowOut: {host[:256]}: {error}") from None
    if not allowed:
        raise NoCounterpart(f"network.allowOut: {host[:256]}: no rule of the policy lets one connect to it; {_WHY}")
