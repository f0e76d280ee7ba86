"""Rules about connections that reach further than they read, or never anything."""

from collections.abc import Iterator

from gateway.policy.fields import CONNECT
from gateway.policy.host_checks import private_hosts
from gateway.policy.lint.findings import Finding, Linted


def connections(linted: Linted) -> Iterator[Finding]:
    """Yield rules that let any host be reached, and addresses that only the operator's layer can open."""
    for placed in linted.own:
        rule = placed.rule
        if CONNECT in rule.tools and rule.effect == "allow" and rule.hosts is None:
            what = "any host of the internet may be reached, and sent whatever is in the sandbox"
            yield linted.finding("any-host", placed, what, "write hosts to say which")
    if linted.operator is None:  # with one, such a policy does not load
        places = {placed.path: placed for placed in linted.own}
        for path, what in private_hosts(linted.document, None):
            if (named := places.get(path[:-2])) is not None:
                fix = "nothing is to do in the operator's own policy; --operator FILE checks both"
                yield linted.finding("private-address", named, what, fix)
