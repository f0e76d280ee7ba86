"""One gateway with two tenants for the tests that only call it; tests that stop a gateway make their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from gateway.client import Client
from tests.docker_state import containers_of, volumes_of
from tests.gateway_process import Home, make_home, served


@dataclass(frozen=True)
class Pair:
    """A served gateway and the keys of its two tenants."""

    home: Home
    address: str
    key: str
    other_key: str


STRICT_POLICY = """\
version: 1
description: What the tests of refusals need.
rules:
  - id: files
    tools: [ls, read_file, write_file, edit_file, glob, grep]
    paths: [/workspace, /workspace/**]
    effect: allow
    reason: The workspace is the agent's.
  - id: no-secrets
    tools: [read_file, write_file]
    paths: [/workspace/secret/**]
    effect: deny
    reason: Secrets are not for agents.
  - id: plain-commands
    tools: [execute]
    argv: [[ls], [cat], [echo], [python3, -m, unittest]]
    effect: allow
    reason: Harmless commands.
  - id: processes
    tools: [ls]
    paths: [/proc]
    effect: allow
    reason: Whose processes are there to be seen.
"""


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Serve a gateway; when the last test is over nothing of it is left in Docker."""
    home = make_home(tmp_path_factory.mktemp("gateway"))
    other_key = home.add_tenant("strict", STRICT_POLICY)
    with served(home) as gateway:
        yield Pair(home, gateway.address, home.key, other_key)
    assert containers_of(home.instance) == []
    assert volumes_of(home.instance) == []


@pytest.fixture
async def client(pair: Pair) -> AsyncIterator[Client]:
    """A client of the default tenant."""
    async with Client(pair.address, pair.key) as airlock:
        yield airlock


@pytest.fixture
async def strict(pair: Pair) -> AsyncIterator[Client]:
    """A client of the tenant with the strict policy."""
    async with Client(pair.address, pair.other_key) as airlock:
        yield airlock
