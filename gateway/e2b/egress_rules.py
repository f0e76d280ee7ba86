"""The network rules of a sandbox, as they are stored, as a rule of its thread: what is denied, except what is allowed.

Apart from egress.py, since it is used by gateways without HTTP too.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.policy.document import Rule
from gateway.storage.e2b_store import E2bStore
from gateway.storage.entities import Thread

THREAD_PREFIX = "e2b-"
OPTION = "egress"
"""The option of a sandbox that holds its rules."""
ALL = frozenset({"0.0.0.0/0", "::/0"})


@dataclass(frozen=True)
class EgressRules:
    """The network rules of threads that are sandboxes of E2B's SDKs."""

    store: E2bStore

    async def of(self, thread: Thread) -> tuple[Rule, ...]:
        """Return the rules of a thread, none for most."""
        if not thread.name.startswith(THREAD_PREFIX):
            return ()
        asked = (await self.store.options_of(thread.id) or {}).get(OPTION)
        return () if not asked else (rule_of(asked["deny"], asked["allow"]),)


def rule_of(deny: Sequence[str], allow: Sequence[str]) -> Rule:
    """Return the rule. Raises pydantic.ValidationError."""
    everything = not ALL.isdisjoint(deny)
    fields: dict[str, Any] = {} if everything else {"hosts": tuple(map(_pattern, deny))}
    if allow:
        fields["unless"] = {"hosts": tuple(map(_pattern, allow))}
    return Rule(
        id="e2b-network",
        tools=("connect",),
        effect="deny",
        reason="the network rules that the sandbox was created with do not allow it",
        **fields,
    )


def _pattern(host: str) -> str:
    """Return a host, an address or a network as policies write it."""
    host = host.lower()
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        return host
    shown = str(network if "/" in host else network.network_address)
    return f"[{shown}]" if network.version == 6 else shown
