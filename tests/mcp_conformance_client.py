"""The gateway's MCP client as the conformance suite drives one: a program that is given a server's URL.

The session, its transport and the network door are the gateway's own; only the sandbox behind the door is a stand-in.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from functools import partial
from typing import Any, cast

from gateway.mcp_servers.definitions import Definitions
from gateway.mcp_servers.door_transport import door_transport
from gateway.mcp_servers.session import ServerFailed, Session
from gateway.network.connection_records import ConnectionRecords
from gateway.network.decision import CallUnderWay, ConnectionPolicy
from gateway.network.door import Door
from gateway.network.opening import Opening, Trust
from gateway.network.own_connections import OwnConnections
from gateway.policy import load_policy
from gateway.policy.judge import Policy
from gateway.storage.entities import Thread

_TENANT = "version: 1\nrules:\n- {id: a, tools: [connect], hosts: [localhost], effect: allow, reason: r}\n"
_OPERATOR = 'version: 1\nrules:\n- {id: a, tools: [connect], hosts: [127.0.0.0/8, "[::1]"], effect: allow, reason: r}\n'
_VALUES = {"string": "text", "integer": 5, "number": 5, "boolean": True, "array": [], "object": {}}


class _NoSandbox:
    """Satisfies sandbox.Sandbox as far as a door for the gateway's own connections asks."""

    id = "conformance"
    alive = True


class _NoRecords:
    async def write(self, opened: object, ended: object) -> None:
        """Store nothing."""


def _calls(definitions: Definitions) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that the scenario asks for; each tool once, unless it says."""
    asked = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls")
    if asked:
        return [(one["name"], one["arguments"]) for one in asked]
    # A scenario has its tools' schemas sent back, to see that they came through whole.
    first = next(iter(definitions.tools.values()), None)
    values = _VALUES | {"object": {} if first is None else dict(first.parameters)}
    return [
        (
            tool.name,
            {
                name: values.get(schema.get("type", "object"), "text")
                for name, schema in cast(dict[str, Any], tool.parameters.get("properties", {})).items()
            },
        )
        for tool in definitions.tools.values()
    ]


async def main(url: str) -> int:
    policy = Policy(load_policy(_TENANT, "tenant").tenant_document, load_policy(_OPERATOR, "operator").tenant_document)
    trust = ssl.create_default_context()
    door = Door(
        cast(Any, _NoSandbox()),
        ConnectionPolicy(Thread("t", "acme", "t"), lambda: policy, cast(Any, None)),
        ConnectionRecords(cast(Any, _NoRecords())),
        Opening("acme", (), b"secret", lambda: Trust(trust, trust)),
    )
    own = OwnConnections(door, CallUnderWay("call", "", "default", "server/*"))
    session = Session(partial(door_transport, url, {}, own.connect, await own.trust()), modern_first=True)
    try:
        await session.start(20)
        for name, arguments in _calls(session.definitions):
            async with asyncio.timeout(20):
                print(name, await session.call(name, arguments, on_progress=print))
    except ServerFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    finally:
        await session.end()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
